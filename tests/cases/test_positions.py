"""Positions after tokens were dropped (public reports, group A)."""

from __future__ import annotations

import pytest
import torch
from tests import tracers
from tests.cases.probe import Probe, dense, one_layer, random_streams, run, turn

from kvik.engine.session import Session
from kvik.recipe import Recipe
from kvik.testing import models

SPEC = one_layer(heads=6, kv_heads=2, dim=16)


def test_the_next_position_is_the_number_of_tokens_seen_not_kept() -> None:
    """Case 1: a budget of 128, 300 tokens one by one."""
    probe = Probe("sinks:4+window:124")
    for _ in range(300):
        seen = probe.feed(1)[0]
    assert probe.sequence.length == 300
    assert seen == {0, 1, 2, 3, *range(300 - 124, 300)}
    probe.cache.plan([probe.sequence], [1])
    assert probe.cache.positions.tolist() == [300]


@pytest.mark.parametrize("recipe", ["heavy:20", "heavy:9,every=16", "spread:12"])
def test_after_evictions_a_query_is_dense_attention_over_the_kept_set(recipe: str) -> None:
    """Case 2: interior tokens go; the rest is exact, at original positions."""
    kept = _kept_sets(recipe, 90)
    streams = random_streams(SPEC, 90)
    got = run(f"fp32+{recipe}", SPEC, streams, [90])
    for head in range(2):
        want = dense(SPEC, streams, [sets[head] for sets in kept])
        mine = slice(3 * head, 3 * head + 3)
        assert (got[:, mine] - want[:, mine]).abs().max() < 1e-5
    assert max(len(s[0]) for s in kept) < 45


def _kept_sets(recipe: str, count: int) -> list[list[list[int]]]:
    """Kept positions per query and KV head, by replaying the policy over dense scores."""
    policy = Recipe.parse(recipe).stages[0][0]
    assert isinstance(policy, tracers.Heavy | tracers.Spread)
    streams = random_streams(SPEC, count)
    at = torch.arange(count)
    q, k = turn(streams[0], at), turn(streams[1], at)
    kept: list[list[int]] = [[], []]
    mass = torch.zeros(2, count, dtype=torch.float64)
    history = []
    for p in range(count):
        for head in range(2):
            if p and p % policy.interval == 0:
                keep = min(len(kept[head]), policy.budget(p, 0, head))
                here = torch.tensor(kept[head])
                chosen = policy.select(here, mass[head, here].float(), keep, p)
                kept[head] = here[chosen].tolist()
            kept[head].append(p)
            for query in range(3):
                scores = k[kept[head], head] @ q[p, 3 * head + query] * SPEC.layers[0].scale
                mass[head, kept[head]] += scores.softmax(0)
        history.append([list(kept[0]), list(kept[1])])
    return history


@pytest.mark.parametrize("cuts", [[128], [44], [32], [1], [60, 17, 1]])
@pytest.mark.parametrize("recipe", ["window:64", "window:64+page:64", "sinks:3+window:61"])
def test_writing_into_a_full_window_is_exact_for_every_cut(recipe: str, cuts: list[int]) -> None:
    """Case 3: prefix and suffix through a full window in pieces of many sizes."""
    streams = random_streams(SPEC, 200)
    got = run(f"fp32+{recipe}", SPEC, streams, cuts)
    whole = run(f"fp32+{recipe}", SPEC, streams, [200])
    assert (got - whole).abs().max() < 1e-6
    if "sinks" not in recipe:
        want = dense(SPEC, streams, [list(range(max(0, p - 63), p + 1)) for p in range(200)])
        assert (got - want).abs().max() < 1e-6


def test_a_small_window_stays_sound_over_many_tokens() -> None:
    """Cases 5 and 10: a window of 30, hundreds of shifts; sinks never drift."""
    streams = random_streams(SPEC, 300)
    got = run("fp32+sinks:2+window:28", SPEC, streams, [1])
    q, k, v = streams
    worst = []
    for p in (40, 150, 299):
        tokens = [0, 1, *range(p - 27, p + 1)]
        # In-cache positions: the kept tokens are numbered 0, 1, 2, ... and the query stands last.
        numbers = torch.arange(len(tokens))
        query, keys = turn(q[p : p + 1], numbers[-1:])[0], turn(k[tokens], numbers)
        want = []
        for h in range(6):
            weights = (keys[:, h // 3] @ query[h] * SPEC.layers[0].scale).softmax(0)
            want.append(weights @ v[tokens, h // 3])
        worst.append(float((got[p] - torch.stack(want)).abs().max()))
    assert max(worst) < 1e-6


def test_both_position_modes_exist_and_differ_only_past_the_window() -> None:
    """Case 7: in-cache positions are the default, original ones an option."""
    streams = random_streams(SPEC, 80)
    cache = run("fp32+sinks:4+window:20", SPEC, streams, [80])
    original = run("fp32+sinks:4,positions=original+window:20", SPEC, streams, [80])
    assert (cache[:24] - original[:24]).abs().max() < 1e-9
    assert (cache[40:] - original[40:]).abs().max() > 1e-3
    want = dense(
        SPEC,
        streams,
        [sorted({*range(min(4, p + 1)), *range(max(0, p - 19), p + 1)}) for p in range(80)],
    )
    assert (original - want).abs().max() < 1e-6


@pytest.mark.parametrize("recipe", ["sinks:3+window:20+int8", "heavy:20+int8", "window:9+int4"])
def test_several_tokens_at_once_after_eviction_equal_one_by_one(recipe: str) -> None:
    """Case 9."""
    streams = random_streams(SPEC, 75)
    a = run(recipe, SPEC, streams, [60, 15])
    b = run(recipe, SPEC, streams, [60, 1])
    assert (a - b).abs().max() < 1e-6


def test_scores_of_a_group_are_reduced_to_its_kv_head() -> None:
    """Cases 6 and 11: 8 query heads over 2 KV heads; mass has one row per KV head."""
    spec = one_layer(heads=8, kv_heads=2, dim=16)
    probe = Probe("heavy:9", spec)
    streams = random_streams(spec, 30)
    probe.cache.plan([probe.sequence], [30])
    probe.cache.attend(0, *(s.float() for s in streams))
    probe.cache.commit()
    for table in probe.sequence.state.main:
        mass = getattr(table, "mass")  # noqa: B009
        assert mass.shape == table.positions.shape
    seen = sum(float(getattr(t, "mass").sum()) for t in probe.sequence.state.main)  # noqa: B009
    assert 0 < seen < 8 * 30 - 1  # what fell out took its mass along


def test_an_endless_stream_through_a_model_keeps_finite_logits() -> None:
    """Case 5: generation far past the window stays finite."""
    session = Session(models.plain(), "sinks:2+window:28+int8", max_tokens=400)
    logits = session.feed([i % 90 for i in range(400)], logits="all", chunk=37)
    assert bool(logits.isfinite().all())
    assert len(session.tokens) == 400
