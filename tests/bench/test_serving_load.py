"""The load is what the trace says: lengths, rhythm, prompts that share nothing by accident."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik.bench.serving_load import Asked, fill, shrink, with_rate
from kvik.bench.trace import SHAPES, Arrival, generate
from kvik.errors import KvikError

TRACE = generate(SHAPES["sharegpt"], requests=40, rate=3.0, context=2048, seed=1)


def test_lengths_are_scaled_and_never_nothing() -> None:
    small = shrink(TRACE, 0.05)
    for one, other in zip(TRACE, small, strict=True):
        assert other.time == one.time
        assert other.prompt == max(1, round(one.prompt * 0.05))
        assert other.output == max(1, round(one.output * 0.05))
    assert min(a.prompt for a in shrink(TRACE, 0.001)) == 1
    assert shrink(TRACE, 1) == TRACE


@pytest.mark.parametrize("rate", [0.25, 1.0, 80.0])
def test_the_rate_stretches_the_rhythm_alone(rate: float) -> None:
    found = with_rate(TRACE, rate)
    assert len(found) / found[-1].time == pytest.approx(rate)
    stretch = found[0].time / TRACE[0].time
    for one, other in zip(TRACE, found, strict=True):
        assert (other.prompt, other.output) == (one.prompt, one.output)
        assert other.time == pytest.approx(one.time * stretch)


def test_a_trace_without_a_rhythm_is_refused() -> None:
    with pytest.raises(KvikError, match="all arrive at 0 s"):
        with_rate([Arrival(0.0, 3, 4), Arrival(0.0, 3, 4)], 1.0)
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(KvikError, match="--rate above 0"):
            with_rate(TRACE, rate)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 99))
def test_prompts_are_pieces_of_the_text_that_do_not_overlap(lengths: list[int], seed: int) -> None:
    text = range(1000, 1000 + sum(lengths))
    load = fill([Arrival(1.0 * i, n, 5) for i, n in enumerate(lengths)], text, seed=seed)
    assert [len(a.prompt) for a in load] == lengths
    assert [a.time for a in load] == [1.0 * i for i in range(len(lengths))]
    assert sorted(token for a in load for token in a.prompt) == list(text)
    for asked in load:
        for one, other in pairwise(asked.prompt):
            assert other in (one + 1, text[0])


def test_the_head_counts_and_the_text_begins_again() -> None:
    load = fill([Arrival(0.0, 7, 1), Arrival(0.0, 1, 1)], [10, 11, 12], head=[1, 2])
    assert load[0].prompt[:2] == (1, 2)
    assert len(load[0].prompt) == 7
    assert set(load[0].prompt[2:]) == {10, 11, 12}
    assert load[1].prompt == (1,)
    with pytest.raises(KvikError, match="no text"):
        fill([Arrival(0.0, 1, 1)], [])


def test_the_seed_decides_where_the_text_begins() -> None:
    text = range(5000)
    assert fill(TRACE, text, seed=1) == fill(TRACE, text, seed=1) != fill(TRACE, text, seed=2)


def test_the_last_token_is_not_cached() -> None:
    assert Asked(0.0, (1, 2, 3), 4).final == 6
