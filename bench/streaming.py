"""Window against sinks + window on streamed text: perplexity, KL and top-1 past the budget.

    python bench/streaming.py --out bench/results/streaming.jsonl

Two texts of 4,096 tokens stream through the cache. ``recompute`` runs the newest ``budget`` tokens
from scratch at 120 evenly spaced positions a text: what a window can know while keeping nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from common import emit, start

from kvik.engine.session import Session
from kvik.evaluate.metrics import Rows, score, summarize
from kvik.models import Model

POSITIONS = 120


def stream(model: Model, recipe: str, ids: list[int]) -> np.ndarray:
    """Logits [T, vocab] of every token of a text through one recipe."""
    session = Session(model, recipe, max_tokens=len(ids))
    return session.feed(ids, logits="all", chunk=256).numpy()


def recompute(model: Model, ids: list[int], at: np.ndarray, budget: int) -> np.ndarray:
    """Logits after each position of ``at`` from its newest ``budget`` tokens alone."""
    rows = []
    for position in at:
        session = Session(model, "fp32", max_tokens=budget)
        rows.append(session.feed(ids[position - budget + 1 : position + 1]).numpy()[0])
    return np.stack(rows)


def main() -> None:
    """Runs every cache on every text and writes one record a cache."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--budget", type=int, default=256)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--texts", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("bench/results/streaming.jsonl"))
    args = parser.parse_args()
    budget, length = args.budget, args.length
    model, text = start(args.model)
    recipes = [
        "fp32",
        f"fp32+window:{budget}",
        f"fp32+sinks:4+window:{budget - 4}",
        f"fp32+sinks:4,positions=original+window:{budget - 4}",
    ]
    everywhere = np.arange(budget, length - 1)
    some = np.linspace(budget, length - 2, POSITIONS).astype(int)
    found: dict[str, list[Rows]] = {}
    for number in range(args.texts):
        offset = number * (len(text) - length) // max(args.texts - 1, 1)
        ids = text[offset : offset + length]
        targets = np.asarray(ids[1:])
        full = stream(model, recipes[0], ids)
        for recipe in recipes:
            ours = full if recipe == "fp32" else stream(model, recipe, ids)
            for name, at in ((recipe, everywhere), (f"{recipe} at {POSITIONS}", some)):
                rows = score(full[at], ours[at], targets[at])
                found.setdefault(name, []).append(rows)
        ours = recompute(model, ids, some, budget)
        rows = score(full[some], ours, targets[some])
        found.setdefault(f"recompute at {POSITIONS}", []).append(rows)
    for name, parts in found.items():
        q = summarize(Rows.join(parts))
        figures = {"ppl": q.ppl, "kl": q.kl_mean, "top1": q.top1, "tokens": q.tokens}
        record = {"bench": "streaming", "model": args.model, "cache": name, "budget": budget}
        emit(args.out, record | figures)


if __name__ == "__main__":
    with torch.no_grad():
        main()
