"""KL, top-1 and perplexity of recipes by the standard protocol, beside their measured bits.

    python bench/quality.py --kv int8 --kv int8/int4 --out bench/results/quality.jsonl

Three offsets of the text; at each 2,048 tokens of context, then 512 teacher-forced tokens in chunks
of 32, against the full fp32 cache.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from common import emit, start

from kvik.engine.session import Session
from kvik.evaluate.metrics import Rows, score, summarize
from kvik.models import Model

SCORED = 512


def logits(model: Model, recipe: str, ids: list[int], context: int) -> tuple[np.ndarray, int]:
    """Logits [SCORED, vocab] after the context, and the bytes the cache holds at the end."""
    session = Session(model, recipe, max_tokens=len(ids))
    session.feed(ids[:context])
    rows = session.feed(ids[context : context + SCORED], logits="all", chunk=32).numpy()
    return rows, session.kv_bytes


def main() -> None:
    """Runs every recipe at every offset and writes one record a recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--kv", action="append", required=True)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--offsets", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("bench/results/quality.jsonl"))
    args = parser.parse_args()
    model, text = start(args.model)
    length = args.context + SCORED + 1
    found: dict[str, list[Rows]] = {}
    sizes: dict[str, int] = {}
    for number in range(args.offsets):
        offset = number * (len(text) - length) // max(args.offsets - 1, 1)
        ids = text[offset : offset + length]
        targets = np.asarray(ids[args.context + 1 :])
        full, full_bytes = logits(model, "fp32", ids, args.context)
        for recipe in args.kv:
            ours, sizes[recipe] = logits(model, recipe, ids, args.context)
            found.setdefault(recipe, []).append(score(full, ours, targets))
        found.setdefault("fp32", []).append(score(full, full, targets))
        sizes["fp32"] = full_bytes
    dense = summarize(Rows.join(found["fp32"]))
    for recipe in args.kv:
        q = summarize(Rows.join(found[recipe]))
        record = {"bench": "quality", "model": args.model, "cache": recipe, "tokens": q.tokens}
        record |= {"bits": 32 * sizes[recipe] / sizes["fp32"], "bytes": sizes[recipe]}
        record |= {"kl": q.kl_mean, "kl_p99": q.kl_p99, "top1": q.top1}
        emit(args.out, record | {"ppl": q.ppl, "ppl_ratio": q.ppl / dense.ppl})


if __name__ == "__main__":
    main()
