"""Sliding windows (public reports, group C)."""

from __future__ import annotations

import pytest
from tests.cases.probe import Probe, one_layer

from kvik.engine.session import Session
from kvik.testing import models


@pytest.mark.parametrize("spec", [None, one_layer(window=8)], ids=["recipe", "model"])
def test_a_window_of_8_is_8_keys_with_the_querys_own(spec: object) -> None:
    """Case 23: the same in prefill and in decode, for recipes and for sliding layers."""
    recipe = "fp32+window:8" if spec is None else "fp32"
    prefill, decode = Probe(recipe, spec), Probe(recipe, spec)  # type: ignore[arg-type]
    want = [set(range(max(0, p - 7), p + 1)) for p in range(30)]
    assert prefill.feed(30) == want
    assert [decode.feed(1)[0] for _ in range(30)] == want


def test_the_window_holds_the_last_tokens_when_it_fills() -> None:
    """Case 25: W = 8, 6 tokens of prefill, 4 steps."""
    probe = Probe("fp32+window:8")
    probe.feed(6)
    for _ in range(4):
        seen = probe.feed(1)[0]
    assert seen == set(range(2, 10))


def test_three_samples_of_a_prompt_longer_than_the_window_free_every_page_once() -> None:
    """Case 26: shared pages that a window drops."""
    probe = Probe("fp32+window:8+page:4")
    probe.feed(30)
    forks = [probe.cache.fork(probe.sequence) for _ in range(3)]
    for n, fork in enumerate(forks):
        assert probe.feed(5 + n, fork)[-1] == set(range(27 + n, 35 + n))
    for sequence in (*forks, probe.sequence):
        probe.cache.free(sequence)
    assert probe.cache.pool.stats().used == 0


def test_going_back_over_a_window_recomputes_and_says_how_much() -> None:
    """Case 27: after an overflow the tokens before it are gone; a mark saves the way back."""
    model, tokens = models.plain(), [(5 * i) % 96 for i in range(90)]
    session = Session(model, "window:16+page:4", max_tokens=200)
    session.feed(tokens[:80])
    session.mark()
    session.feed(tokens[80:])
    assert session.trim(85) == 5  # from the mark at 80
    assert session.tokens == tokens[:85]
    a = session.feed([1])
    other = Session(model, "window:16+page:4", max_tokens=200)
    other.feed(tokens[:85])
    assert (a - other.feed([1])).abs().max() < 1e-6


def test_going_back_within_the_current_page_of_a_window_costs_nothing() -> None:
    """Case 29 in small: what is still stored is used."""
    session = Session(models.plain(), "fp16", max_tokens=200)
    session.feed([(5 * i) % 96 for i in range(90)])
    assert session.trim(41) == 0


def test_a_window_longer_than_the_text_costs_the_text() -> None:
    """Case 30: min(W, length)."""
    wide = Session(models.plain(), "fp16+window:1024", max_tokens=2000)
    full = Session(models.plain(), "fp16", max_tokens=2000)
    for session in (wide, full):
        session.feed([i % 96 for i in range(128)])
    assert wide.kv_bytes == full.kv_bytes


@pytest.mark.parametrize("page", [1, 7, 32, 64])
def test_an_expired_token_is_unseen_even_while_its_page_lives(page: int) -> None:
    """Otherwise the window would silently be W + page - 1."""
    probe = Probe(f"fp32+window:10+page:{page}")
    assert all(len(seen) == 10 for seen in probe.feed(100)[9:])
