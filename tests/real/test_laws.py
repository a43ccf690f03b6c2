"""The laws and the quality figures on the two real models."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvik.engine.session import Session
from kvik.evaluate.metrics import Quality, score, summarize
from kvik.models import Model
from kvik.testing.choices import clear_choices

pytestmark = [pytest.mark.model, pytest.mark.slow]


def logits(model: Model, recipe: str, ids: list[int], cuts: list[int]) -> torch.Tensor:
    """Logits of every token fed in pieces of the given sizes (the last repeats)."""
    session, parts, at, sizes = Session(model, recipe, max_tokens=len(ids)), [], 0, list(cuts)
    while at < len(ids):
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        parts.append(session.feed(ids[at : at + size], logits="all", chunk=size))
        at += size
    assert session.kv_bytes == session.planned_bytes(len(ids))
    return torch.cat(parts)


def agree(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> None:
    """Law 1 between cuts: within tolerance, greedy tokens equal where the margin is clear."""
    assert (a - b).abs().max() <= tolerance
    sure = clear_choices(a, tolerance)
    assert torch.equal(a.argmax(-1)[sure], b.argmax(-1)[sure])
    assert sure.float().mean() > 0.95


@pytest.mark.parametrize(
    ("recipe", "tolerance"), [("fp32", 2e-3), ("fp16", 3e-2), ("sinks:4+window:60+fp32", 2e-3)]
)
def test_chunks_equal_single_steps(
    smollm: Model, text: list[int], recipe: str, tolerance: float
) -> None:
    """Teacher-forced chunks measure what decoding token by token would.

    float32 products round differently for one row and for many; through fp16 a rounding that
    tips over is 2 ** -11 of the number instead of 2 ** -24.
    """
    chunks = logits(smollm, recipe, text[:160], [128, 32])
    steps = logits(smollm, recipe, text[:160], [128, 1])
    agree(chunks[128:], steps[128:], tolerance)


@pytest.mark.parametrize("recipe", ["int8", "int8/int4", "int4"])
def test_chunks_of_quantized_caches_measure_the_same_quality(
    smollm: Model, text: list[int], recipe: str
) -> None:
    """float32 rounding flips a code now and then; the quality does not move."""
    ids = text[:161]
    full = logits(smollm, "fp32", ids[:-1], [160])[128:].numpy()
    targets = np.asarray(ids[129:])
    kl = [
        score(full, logits(smollm, recipe, ids[:-1], cuts)[128:].numpy(), targets).kl
        for cuts in ([128, 32], [128, 1])
    ]
    assert abs(kl[0].mean() - kl[1].mean()) < 0.1 * kl[0].mean() + 1e-5


def test_with_and_without_a_cache_the_text_is_the_same(smollm: Model, text: list[int]) -> None:
    """Greedy, 16 tokens, the cache against recomputation."""
    sessions = [Session(smollm, recipe, max_tokens=200) for recipe in ("fp32", "none")]
    rows = [s.feed(text[:40]) for s in sessions]
    for _ in range(16):
        tokens = [int(row.argmax()) for row in rows]
        assert tokens[0] == tokens[1]
        assert (rows[0] - rows[1]).abs().max() < 1e-3
        rows = [s.feed([t]) for s, t in zip(sessions, tokens, strict=True)]


def quality(model: Model, recipes: list[str], ids: list[int], context: int) -> list[Quality]:
    """KL and the rest over the tokens after a context, teacher-forced in chunks of 32."""
    targets = np.asarray(ids[context + 1 :])
    rows = []
    for recipe in ["fp32", *recipes]:
        session = Session(model, recipe, max_tokens=len(ids))
        session.feed(ids[:context])
        rows.append(session.feed(ids[context:-1], logits="all", chunk=32).numpy())
    return [summarize(score(rows[0], ours, targets)) for ours in rows[1:]]


def test_int8_and_int8_int4_beat_the_figures_for_the_same_bits(
    smollm: Model, text: list[int]
) -> None:
    """2,048 tokens of context, 512 scored: .0047 and .0095 are q8_0 and q8_0/q4_0."""
    ids = text[: 2048 + 513]
    int8, mixed = quality(smollm, ["int8", "int8/int4"], ids, 2048)
    assert int8.kl_mean <= 0.0047
    assert mixed.kl_mean <= 0.0095
    assert int8.top1 > 0.97


def test_fp16_loses_nothing_that_matters(smollm: Model, text: list[int]) -> None:
    (half,) = quality(smollm, ["fp16"], text[: 256 + 129], 256)
    assert half.kl_mean <= 1e-5


def test_sinks_prevent_the_collapse_of_a_window(smollm: Model, text: list[int]) -> None:
    """The collapse starts as soon as the cache fills, and four sinks undo it."""
    ids, budget = text[:1025], 256
    targets = np.asarray(ids[budget + 1 :])
    ppl = {}
    for recipe in ("fp32", "fp32+window:256", "fp32+sinks:4+window:252"):
        rows = Session(smollm, recipe, max_tokens=1025).feed(ids[:-1], logits="all", chunk=256)
        ours = rows[budget:].numpy()
        ppl[recipe] = summarize(score(ours, ours, targets)).ppl
    full, window, sinks = ppl.values()
    assert window > 1.4 * full
    assert sinks < 1.2 * full


def test_sliding_layers_keep_only_their_window(gemma: Model) -> None:
    """Gemma 3: 15 of 18 layers hold 512 tokens, whatever the text's length."""
    ids = [(17 * i) % 5000 + 300 for i in range(1100)]
    session = Session(gemma, "fp16", max_tokens=1100)
    sizes = []
    for start in range(0, 1100, 100):
        session.feed(ids[start : start + 100])
        assert session.kv_bytes == session.planned_bytes(start + 100)
        sizes.append(session.kv_bytes)
    per_page = 3 * 2 * 256 * 2 * 32  # three global layers, K and V, 256 channels, fp16, 32 tokens
    assert sizes[-1] - sizes[-3] <= 7 * (per_page + 8) + 15 * 2 * 256 * 2 * 32 + 8
    assert sizes[-1] < 1100 * 18_432 * 0.75


def test_gemma_in_chunks_equals_gemma_at_once(gemma: Model) -> None:
    """Across the window's edge, in sizes that do not divide it."""
    ids = [(17 * i) % 5000 + 300 for i in range(600)]
    whole = Session(gemma, "fp32", max_tokens=600).feed(ids, logits="last", chunk=600)
    cut = Session(gemma, "fp32", max_tokens=600)
    cut.feed(ids[:517], chunk=47)
    agree(cut.feed(ids[517:], chunk=83), whole, 5e-3)
