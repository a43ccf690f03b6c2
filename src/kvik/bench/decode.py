"""Time per token of decoding and of prefill against context and batch, beside its floor.

The floor of a decode step is the bytes that it cannot avoid reading (the weights as they lie in
memory, once, and the K and V that the sequences hold) over the bandwidth of a plain read loop.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from kvik.bench.bandwidth import BUFFER, Bandwidth, read_bandwidth
from kvik.bench.decode_bytes import weight_bytes
from kvik.bench.decode_cache import Batch, Load, check_memory, needed_bytes
from kvik.errors import KvikError
from kvik.machine import threads
from kvik.models import Model
from kvik.recipe import Recipe

DECODE_NOTES = (
    "Before a step is timed the cache is filled with random K and V by its own way of writing, "
    "not by computing a prompt: what is read takes as long whatever it says.",
    "Floor: packed weights once plus all K and V held, over the bandwidth of a plain read loop "
    "with as many threads. Activations, tables and the read of the bandwidth's own noise are not "
    "in it. A model that fits into the last-level cache can be faster than its floor.",
    "Attention: its kernels alone, layer by layer, with random queries; its bandwidth counts "
    "the K and V held.",
)
PREFILL_NOTES = (
    "The whole prompt is computed from an empty cache, in chunks; logits of its last token only.",
    "Bytes: the weights once for each chunk and the K and V held after it. Prefill is bound by "
    "arithmetic, so this bandwidth is far below the machine's and there is no floor.",
)


@dataclass(frozen=True)
class Setting:
    """What is measured: every recipe at every context and batch.

    Recipes take turns, ``rounds`` times, so that what disturbs the machine meets all alike; a
    turn is ``steps`` decode steps or one prompt.
    """

    model: Model
    recipes: tuple[Recipe, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    rounds: int = 3
    steps: int = 8
    chunk: int = 512
    seed: int = 0
    bandwidth_bytes: int = BUFFER

    def loads(self, extra: int) -> list[Load]:
        """Every context with every batch; ``extra`` tokens will follow each context."""
        return [Load(c, b, extra) for c, b in product(self.contexts, self.batches)]

    def check(self, extra: int) -> None:
        """KvikError, before anything runs, for what the model or the memory cannot do."""
        most = self.model.spec.context
        if max(self.contexts) + extra > most:
            raise KvikError(
                f"a context of {max(self.contexts):,} tokens and {extra} more are beyond the "
                f"{most:,} that {self.model.name} reads: give a shorter --context"
            )
        for load in self.loads(extra):
            need = sum(needed_bytes(self.model, recipe, load) for recipe in self.recipes)
            check_memory(need, f"a batch of {load.batch} with {load.context:,} tokens")


Tell = Callable[[str], None]


def measure_decode(setting: Setting, tell: Tell = lambda text: None) -> dict[str, Any]:
    """Decode steps at every context and batch."""
    extra = 1 + setting.rounds * (setting.steps + 1)
    setting.check(extra)
    bandwidth, runs = _bandwidth(setting), []
    weights = weight_bytes(setting.model)
    for load in setting.loads(extra):
        batches = [Batch(setting.model, recipe, load) for recipe in setting.recipes]
        draw = torch.Generator().manual_seed(setting.seed + 1)
        for batch in batches:
            tell(f"{batch.recipe}: {load.batch} x {load.context:,} tokens")
            batch.fill(setting.seed)
        times: list[list[float]] = [[] for _ in batches]
        alone: list[list[float]] = [[] for _ in batches]
        for _, (index, batch) in product(range(setting.rounds), enumerate(batches)):
            batch.step()  # the caches of the processor are the other recipe's
            times[index] += [batch.step() for _ in range(setting.steps)]
            alone[index] += [batch.attend(draw) for _ in range(setting.steps)]
        for batch, steps, attends in zip(batches, times, alone, strict=True):
            attend, moved = spread(attends), weights + batch.kv_bytes
            facts = {
                "weight_bytes": weights,
                "kv_bytes": batch.kv_bytes,
                "attend_ms": attend,
                "attend_gb_s": batch.kv_bytes / attend["median"] / 1e6,
                "floor_ms": 1e3 * moved / bandwidth[-1].best,
            }
            run = _run(batch, steps, load.batch, moved) | facts
            runs.append(run | {"over_floor": run["ms"]["median"] / facts["floor_ms"]})
            batch.free()
    return _document("decode", setting, bandwidth, runs, DECODE_NOTES)


def measure_prefill(setting: Setting, tell: Tell = lambda text: None) -> dict[str, Any]:
    """Whole prompts at every length and batch."""
    setting.check(0)
    bandwidth, runs = _bandwidth(setting), []
    weights = weight_bytes(setting.model)
    for load in setting.loads(0):
        batches = [Batch(setting.model, recipe, load) for recipe in setting.recipes]
        found: list[list[tuple[float, int]]] = [[] for _ in batches]
        for _, (index, batch) in product(range(setting.rounds), enumerate(batches)):
            tell(f"{batch.recipe}: {load.batch} x {load.context:,} tokens")
            found[index].append(batch.prompt(setting.chunk))
            held = batch.kv_bytes
            batch.free()
        chunks = -(-load.context // max(1, setting.chunk // load.batch))
        for batch, pairs in zip(batches, found, strict=True):
            seconds = [one for one, _ in pairs]
            run = _run(batch, seconds, load.batch * load.context, chunks * weights + pairs[0][1])
            runs.append(run | {"weight_bytes": weights, "kv_bytes": held})
    return _document("prefill", setting, bandwidth, runs, PREFILL_NOTES)


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median, least and most, in milliseconds."""
    ms = [1e3 * one for one in seconds]
    return {"median": statistics.median(ms), "least": min(ms), "most": max(ms), "n": len(ms)}


def _bandwidth(setting: Setting) -> list[Bandwidth]:
    counts = sorted({1, threads()})
    return [read_bandwidth(count, nbytes=setting.bandwidth_bytes) for count in counts]


def _run(batch: Batch, seconds: Sequence[float], tokens: int, moved: int) -> dict[str, Any]:
    """One cell of the result; ``tokens`` come of one of the measured times."""
    ms = spread(seconds)
    return {
        "recipe": str(batch.recipe),
        "context": batch.load.context,
        "batch": batch.load.batch,
        "ms": ms,
        "ms_token": ms["median"] / tokens,
        "tokens_s": 1e3 * tokens / ms["median"],
        "bytes": moved,
        "gb_s": moved / ms["median"] / 1e6,
        "load_average": os.getloadavg()[0],
    }


def _document(
    bench: str,
    setting: Setting,
    bandwidth: Sequence[Bandwidth],
    runs: list[dict[str, Any]],
    notes: Sequence[str],
) -> dict[str, Any]:
    return {
        "bench": bench,
        "model": setting.model.name,
        "rounds": setting.rounds,
        **({"steps": setting.steps} if bench == "decode" else {"chunk": setting.chunk}),
        "read_gb_s": [one.as_json() for one in bandwidth],
        "runs": runs,
        "notes": list(notes),
    }


def records(result: dict[str, Any]) -> list[dict[str, Any]]:
    """One flat record a run, each with all that a reader needs, for a JSON-lines file."""
    shared = {key: value for key, value in result.items() if key not in ("runs", "notes")}
    return [shared | run for run in result["runs"]]
