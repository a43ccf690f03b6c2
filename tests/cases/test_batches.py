"""Masks and batches (public reports, group B): there is no padding, so nothing can leak from it."""

from __future__ import annotations

import pytest
import torch
from tests import tracers
from tests.cases.probe import Probe

from kvik.cache import KVCache, PagePool
from kvik.engine.session import Session
from kvik.models import Model
from kvik.recipe import Recipe
from kvik.testing import models

assert tracers.PerChannel.examples
RECIPES = ["fp32", "int8", "perchannel", "sinks:3+window:20+int4", "heavy:20"]


def step(cache: KVCache, model: Model, work: list[tuple[object, list[int]]]) -> list[torch.Tensor]:
    """Logits of the last token of each sequence after one step."""
    cache.plan([s for s, _ in work], [len(t) for _, t in work])  # type: ignore[misc]
    spans = cache.spans
    flat = torch.tensor([t for _, tokens in work for t in tokens])
    logits = model.forward(flat, cache.positions, cache)
    cache.commit()
    return [logits[b - 1] for _, b in spans]


def fresh(model: Model, recipe: str) -> KVCache:
    plan = Recipe.parse(recipe).resolve(model.spec)
    return KVCache(plan, PagePool(plan.page_bytes, 32 << 20, poison=True))


def test_new_tokens_after_cached_ones_are_causal_from_the_bottom_right() -> None:
    """Case 13: 4 cached and 2 new tokens; the first new one sees 5, the second 6."""
    probe = Probe("fp32")
    probe.feed(4)
    assert probe.feed(2) == [set(range(5)), set(range(6))]


@pytest.mark.parametrize("recipe", RECIPES)
def test_company_changes_nothing(recipe: str) -> None:
    """Cases 14, 15 and 21: alone, or with 1 to 4 strangers of other lengths."""
    model = models.plain()
    prompt = [(7 * i) % 96 for i in range(33)]
    cache = fresh(model, recipe)
    (alone,) = step(cache, model, [(cache.create(), prompt)])
    for strangers in range(1, 5):
        cache = fresh(model, recipe)
        work = [
            (cache.create(), [(i * 5 + n) % 96 for i in range(3 + 11 * n)])
            for n in range(strangers)
        ]
        work.insert(strangers // 2, (cache.create(), prompt))
        together = step(cache, model, work)[strangers // 2]
        assert (together - alone).abs().max() < 1e-6


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_longest_row_leaves_and_the_others_go_on_unharmed(recipe: str) -> None:
    """Case 19: three rows, the longest ends, the rest continue."""
    model = models.plain()
    prompts = [[(3 * i + n) % 96 for i in range(length)] for n, length in enumerate((9, 60, 31))]
    cache = fresh(model, recipe)
    rows = [cache.create() for _ in prompts]
    step(cache, model, list(zip(rows, prompts, strict=True)))
    cache.free(rows[1])
    got = [step(cache, model, [(rows[0], [t]), (rows[2], [t + 1])]) for t in range(12)]
    for at, n in enumerate((0, 2)):
        cache = fresh(model, recipe)
        row = cache.create()
        step(cache, model, [(row, prompts[n])])
        for t in range(12):
            (want,) = step(cache, model, [(row, [t + at])])
            assert (got[t][at] - want).abs().max() < 1e-6


def test_length_counts_tokens_and_not_rows_that_are_not_zero() -> None:
    """Case 17: keys and values of all zeros are tokens like any other."""
    probe = Probe("fp32")
    probe.cache.plan([probe.sequence], [3])
    probe.cache.attend(0, torch.zeros(3, 2, 16), torch.zeros(3, 1, 16), torch.zeros(3, 1, 320))
    probe.cache.commit()
    assert probe.sequence.length == 3
    assert probe.feed(1)[0] == {3}  # zeros of the three others weigh in without showing
    assert probe.sequence.length == 4


def test_unused_room_is_never_seen() -> None:
    """Case 18: a page has 32 slots, 20 are used, the rest are NaN."""
    probe = Probe("fp32")
    assert probe.feed(20)[-1] == set(range(20))
    assert probe.feed(1)[0] == set(range(21))


def test_with_and_without_a_cache() -> None:
    """Case 22."""
    model, tokens = models.grouped(), [(11 * i) % 96 for i in range(50)]
    cached, plain = (Session(model, r, max_tokens=60) for r in ("fp32", "none"))
    cached.feed(tokens[:40])
    plain.feed(tokens[:40])
    for t in tokens[40:]:
        a, b = cached.feed([t]), plain.feed([t])
        assert (a - b).abs().max() < 1e-5
    assert plain.kv_bytes == 0
