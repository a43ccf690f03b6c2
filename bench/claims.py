"""What docs/claims.md measures: KL of cache and weight quantization, no cache, reach, paging.

    python bench/claims.py                          all of it
    python bench/claims.py no-cache                 one part
    python tools/claims_page.py                     then the page

SmolLM2-135M-Instruct; the text is the Python language reference. Only ratios of times are kept, of
turns that alternate in one run, since machines differ and this one may be shared. On two cores with
six other jobs it took ten minutes of processor time, eight of them `quality`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import emit, start

from kvik.engine.session import Session
from kvik.evaluate.metrics import Rows, score, summarize
from kvik.models import Model, load_model
from kvik.models.decoder import Decoder
from kvik.models.weights import load_weights

MODEL = "smollm2-135m"
CONTEXT, SCORED, WINDOWS = 512, 192, 2
CACHES = ("int8", "int8/int4", "int4")
CODED_WEIGHTS_CACHES = ("fp32", "int8", "int4")
NO_CACHE_AT, ROUNDS = (128, 512, 1024), 3
WINDOW, REACH_TEXT = 8, 260


def q4_0(matrix: torch.Tensor) -> torch.Tensor:
    """A matrix [out, in] rounded to ggml's Q4_0: groups of 32, a 16-bit scale, 4-bit codes."""
    groups = matrix.reshape(-1, 32)
    peak = groups.gather(1, groups.abs().argmax(1, keepdim=True))
    scale = (peak / -8).half().float()
    inverse = torch.where(scale == 0, 0.0, 1 / scale)
    codes = (groups * inverse + 8.5).floor().clamp(0, 15) - 8
    return (codes * scale).reshape(matrix.shape)


def coded(model: Model) -> Model:
    """The model with every projection rounded once more, to Q4_0; the embedding stays."""
    assert model.path is not None
    weights: dict[str, Any] = {
        name: q4_0(w) if name.endswith("_proj.weight") else w
        for name, w in load_weights(model.path, model.spec).items()
    }
    return replace(model, decoder=Decoder.from_weights(model.spec, weights), origin=None)


def logits(model: Model, recipe: str, ids: list[int]) -> np.ndarray:
    """Logits [SCORED, vocab] of the tokens after the context."""
    session = Session(model, recipe, max_tokens=len(ids))
    session.feed(ids[:CONTEXT])
    return session.feed(ids[CONTEXT : CONTEXT + SCORED], logits="all", chunk=32).numpy()


def quality(packed: Model, text: list[int]) -> Iterator[dict[str, Any]]:
    """KL of every cache and of coded weights, and of both, to float32 weights and cache."""
    whole = load_model(MODEL, dense=True)
    asked = [("as in the file", whole, c) for c in ("fp32", *CACHES)]
    asked += [("Q4_0", coded(whole), c) for c in CODED_WEIGHTS_CACHES]
    asked += [("packed", packed, "fp32")]
    length = CONTEXT + SCORED + 1
    offsets = [(len(text) - length) * i // max(WINDOWS - 1, 1) for i in range(WINDOWS)]
    found: dict[tuple[str, str], list[Rows]] = {}
    for offset in offsets:
        ids = text[offset : offset + length]
        targets = np.asarray(ids[CONTEXT + 1 :])
        full = logits(whole, "fp32", ids)
        for weights, model, cache in asked:
            ours = logits(model, cache, ids)
            found.setdefault((weights, cache), []).append(score(full, ours, targets))
    dense = summarize(Rows.join(found["as in the file", "fp32"]))
    for (weights, cache), rows in found.items():
        q = summarize(Rows.join(rows))
        each = [float(part.kl.mean()) for part in rows]
        yield {"weights": weights, "cache": cache, "context": CONTEXT, "tokens": q.tokens} | {
            "kl": q.kl_mean,
            "kl_by_window": each,
            "top1": q.top1,
            "ppl": q.ppl,
            "ppl_ratio": q.ppl / dense.ppl,
        }


def no_cache(model: Model, text: list[int]) -> Iterator[dict[str, Any]]:
    """A decode step without a cache over one with it, turn by turn."""
    for context in NO_CACHE_AT:
        sessions = [Session(model, kv, max_tokens=context + 64) for kv in ("none", "fp16")]
        for session in sessions:
            session.feed(text[:context])
        ratios = []
        for number in range(ROUNDS + 1):
            bare, kept = (
                _step(session, text, steps) for session, steps in zip(sessions, (1, 5), strict=True)
            )
            if number:  # the first warms up
                ratios.append(bare / kept)
        yield {"context": context, "rounds": ROUNDS, "ratio": statistics.median(ratios)} | {
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }


def _step(session: Session, text: list[int], steps: int) -> float:
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        session.feed([text[len(session.tokens)]])
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def reach(model: Model, text: list[int]) -> Iterator[dict[str, Any]]:
    """What changing one token does to the prediction that many tokens later."""
    layers = len(model.spec.layers)
    far = layers * (WINDOW - 1)
    texts = [text[i : i + REACH_TEXT] for i in (1000, 60_000)]
    for distance in (WINDOW - 1, WINDOW, 4 * WINDOW, far // 2, far, far + 1):
        record: dict[str, Any] = {"window": WINDOW, "layers": layers, "distance": distance}
        for name, recipe in (("window", f"fp32+window:{WINDOW}"), ("full", "fp32")):
            kls, most = [], 0.0
            for ids in texts:
                changed = list(ids)
                changed[-1 - distance] = ids[10]
                a, b = (_last(model, recipe, one) for one in (ids, changed))
                kls.append(float(score(a, b, np.zeros(1, dtype=np.int64)).kl[0]))
                most = max(most, float(np.abs(a - b).max()))
            record |= {f"{name}_kl": statistics.mean(kls), f"{name}_logit_change": most}
        yield record


def _last(model: Model, recipe: str, ids: list[int]) -> np.ndarray:
    return Session(model, recipe, max_tokens=len(ids)).feed(ids).numpy()


def paging(model: Model, text: list[int]) -> Iterator[dict[str, Any]]:
    """The same tokens in pages of other sizes: the largest difference of any logit."""
    for recipe in ("fp16", "int8/int4"):
        rows = []
        for page in (8, 32, 128):
            session = Session(model, f"{recipe}+page:{page}", max_tokens=300)
            rows.append(session.feed(text[:300], logits="all").numpy())
        most = max(float(np.abs(rows[0] - other).max()) for other in rows[1:])
        yield {"recipe": recipe, "pages": [8, 32, 128], "tokens": 300, "logit_change": most}


PARTS: dict[str, Callable[[Model, list[int]], Iterator[dict[str, Any]]]] = {
    "quality": quality,
    "no-cache": no_cache,
    "reach": reach,
    "paging": paging,
}


def main() -> None:
    """Runs the parts that are asked for and writes one record a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--out", type=Path, default=Path("bench/results/claims.jsonl"))
    args = parser.parse_args()
    model, text = start(MODEL)
    for name in args.parts or PARTS:
        for record in PARTS[name](model, text):
            emit(args.out, {"bench": "claims", "claim": name, "model": MODEL, **record})


if __name__ == "__main__":
    main()
