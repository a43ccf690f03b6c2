"""Bookkeeping of a decode step: requests and pages, for 256 sequences.

    python bench/bookkeeping.py --out bench/results/bookkeeping.jsonl

Tables and counts of models of Llama-3-8B and Llama-3-70B shape, without any tensor work: their
pages are never touched, so a pool of 128 GB costs nothing. ``demand``, ``plan`` and ``commit`` are
the cache alone. ``step`` is all of ``Engine.step`` but the model: scheduling, pages, choosing the
likeliest of 16 tokens, ends, outputs. Times are of the process, in ms a step.

``--most 2`` makes it a check: exit status 1 when the mean of ``step`` is above 2 ms for a shape and
recipe, and again when tried once more. Single steps take longer: see the 99th percentiles.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from common import emit
from torch import Tensor

from kvik.cache import KVCache, PagePool, choose_slab
from kvik.cache.pool import MAX_BYTES
from kvik.engine.engine import Engine
from kvik.models import Model
from kvik.recipe import Recipe
from kvik.spec.model import LayerSpec, ModelSpec, Rope

SHAPES = {"llama-3-8b": (32, 32, 4096, 14_336), "llama-3-70b": (80, 64, 8192, 28_672)}
SHARE = 0.95  # of the pool that the prompts may fill at the end


def shape(name: str) -> ModelSpec:
    """A model of the shape: layers, query heads, 8 KV heads of 128."""
    layers, heads, hidden, ffn = SHAPES[name]
    layer = LayerSpec("full", heads, 8, 128, 128, rope=Rope(128, 500_000.0))
    return ModelSpec(name, "llama", (layer,) * layers, 8192, 128_256, hidden, ffn)


def prompts(count: int, room: int, seed: int) -> list[int]:
    """Prompt lengths of 100 to 4,000 tokens, log-uniform, shrunk until they fit together."""
    chance = random.Random(seed)
    drawn = [int(100 * 40 ** chance.random()) for _ in range(count)]
    scale = min(1.0, room / sum(drawn))
    return [max(100, int(n * scale)) for n in drawn]


def measure(name: str, recipe: str, sequences: int, steps: int) -> dict[str, Any]:
    """Times of demand, plan and commit over ``steps`` decode steps."""
    plan = Recipe.parse(recipe).resolve(shape(name))
    slab = choose_slab(plan.page_bytes)
    pool = PagePool(plan.page_bytes, MAX_BYTES // slab * slab, slab_bytes=slab)
    cache = KVCache(plan, pool)
    tokens = plan.groups[0].tokens
    room = int(SHARE * pool.nbytes / plan.groups[0].main.nbytes * tokens)
    batch = [cache.create() for _ in range(sequences)]
    lengths = prompts(sequences, room - sequences * (steps + tokens), 0)
    cache.plan(batch, lengths)
    cache.commit()
    ones, parts = [1] * sequences, []
    used = pool.stats().used
    for _ in range(steps):
        start = time.process_time_ns()
        for sequence in batch:
            cache.demand(sequence, 1)
        asked = time.process_time_ns()
        cache.plan(batch, ones)
        planned = time.process_time_ns()
        cache.commit()
        parts.append((asked - start, planned - asked, time.process_time_ns() - planned))
    crossed = (pool.stats().used - used) // plan.groups[0].main.nbytes
    record: dict[str, Any] = {
        "bench": "bookkeeping",
        "model": name,
        "recipe": recipe,
        "sequences": sequences,
        "steps": steps,
        "prompt_tokens": sum(lengths),
        "new_pages_a_step": crossed / steps,
    }
    named = {"demand": [p[0] for p in parts], "plan": [p[1] for p in parts]}
    named |= {"commit": [p[2] for p in parts], "plan+commit": [p[1] + p[2] for p in parts]}
    return record | {part: summary(times) for part, times in named.items()}


def summary(times: list[int]) -> dict[str, float]:
    """Mean, median and 99th percentile of times in ns, as ms."""
    ordered = sorted(t / 1e6 for t in times)
    return {
        "mean_ms": round(statistics.fmean(ordered), 4),
        "median_ms": round(statistics.median(ordered), 4),
        "p99_ms": round(ordered[int(0.99 * (len(ordered) - 1))], 4),
    }


class Silent:
    """A model of a shape that computes nothing and notes the time that it takes."""

    name, path = "silent", None
    eos_ids: frozenset[int] = frozenset()
    identity = bytes(32)

    def __init__(self, spec: ModelSpec) -> None:
        self.spec, self.spent = replace(spec, vocab=16), 0

    def forward(self, ids: Tensor, positions: Tensor, cache: KVCache, rows: Tensor) -> Tensor:
        """Logits [len(rows), vocab] of zeros."""
        start = time.process_time_ns()
        logits = torch.zeros(len(rows), self.spec.vocab)
        self.spent += time.process_time_ns() - start
        return logits


def measure_engine(name: str, recipe: str, sequences: int, steps: int) -> dict[str, Any]:
    """Times of whole steps of the engine, outside the model."""
    model = Silent(shape(name))
    engine = Engine(
        cast(Model, model), recipe, memory=MAX_BYTES, step_tokens=8192, max_running=sequences
    )
    group, pool = engine.cache.resolved.groups[0], engine.cache.pool
    room = int(SHARE * pool.nbytes / group.main.nbytes * group.tokens)
    chance = random.Random(1)
    for length in prompts(sequences, room - sequences * (steps + group.tokens), 0):
        engine.add(tuple(chance.choices(range(16), k=length)), max_new=steps + 300)
    while engine.scheduler.waiting or engine.stats().generated < sequences:
        engine.step()
    engine.step()
    times = []
    for _ in range(steps):
        start, model.spent = time.process_time_ns(), 0
        outputs = engine.step()
        times.append(time.process_time_ns() - start - model.spent)
        assert len(outputs) == sequences
    return {
        "bench": "bookkeeping",
        "model": name,
        "recipe": recipe,
        "sequences": sequences,
        "steps": steps,
        "step": summary(times),
    }


def too_slow(record: dict[str, Any], most: float | None) -> bool:
    """Whether the mean of a step is above ``most`` ms."""
    return most is not None and record["step"]["mean_ms"] > most


def main() -> int:
    """Every shape and recipe, two records each; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--recipes", nargs="+", default=["fp16", "int8"])
    parser.add_argument("--out", type=Path, default=Path("bench/results/bookkeeping.jsonl"))
    parser.add_argument("--most", type=float, help="ms that a step may take on average")
    args = parser.parse_args()
    failed = False
    for name in SHAPES:
        for recipe in args.recipes:
            emit(args.out, measure(name, recipe, args.sequences, args.steps))
            for left in (1, 0):
                record = measure_engine(name, recipe, args.sequences, args.steps)
                emit(args.out, record)
                if not too_slow(record, args.most):
                    break
                failed |= left == 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
