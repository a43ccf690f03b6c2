"""Traces have the lengths and the arrivals they promise, and survive being written and read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik.bench.trace import SHAPES, Arrival, Lengths, Shape, dump, generate, parse
from kvik.errors import KvikError

ARRIVALS = st.builds(
    Arrival, st.floats(0, 1e6), st.integers(1, 10**6), st.integers(1, 10**6)
)  # fmt: skip


def lengths(name: str, requests: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    trace = generate(SHAPES[name], requests=requests, rate=1.0, context=2048, seed=5)
    return np.array([a.prompt for a in trace]), np.array([a.output for a in trace])


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("requests", [50, 3000])
def test_means_are_those_of_the_shape(name: str, requests: int) -> None:
    shape = SHAPES[name]
    for found, asked in zip(lengths(name, requests), (shape.prompt, shape.output), strict=True):
        # Midpoints of N strata miss a part of the last one, and short lengths are rounded.
        assert found.mean() == pytest.approx(asked.mean, rel=0.02 if requests > 1000 else 0.08)


@pytest.mark.parametrize("name", SHAPES)
def test_lengths_have_a_long_tail_and_a_bound(name: str) -> None:
    for found in lengths(name):
        assert found.min() >= 1
        assert found.max() <= 1024
        assert np.median(found) < 0.9 * found.mean()
        assert np.quantile(found, 0.99) > 2.5 * found.mean()
    prompt, output = lengths(name)
    assert abs(np.corrcoef(prompt, output)[0, 1]) < 0.1


def test_a_normal_length_would_fail_the_tail_test() -> None:
    found = Lengths(161.0, 0.1).draw(np.random.default_rng(0), 3000, 1024)
    assert np.quantile(found, 0.99) < 2.5 * found.mean()


def test_conversations_are_longer_than_instructions() -> None:
    for longer, shorter in zip(lengths("sharegpt"), lengths("alpaca"), strict=True):
        assert longer.mean() > 5 * shorter.mean()


def test_arrivals_are_poisson() -> None:
    trace = generate(SHAPES["alpaca"], requests=4000, rate=8.0, context=2048, seed=1)
    gaps = np.diff([0.0, *(a.time for a in trace)])
    assert (gaps >= 0).all()
    # Mean and spread of exponential gaps are equal: within four standard errors.
    assert gaps.mean() == pytest.approx(1 / 8, rel=4 / 4000**0.5)
    assert gaps.std() == pytest.approx(1 / 8, rel=0.1)
    assert (gaps > 2 / 8).mean() == pytest.approx(np.exp(-2), abs=0.02)


def test_the_seed_decides() -> None:
    def make(seed: int) -> tuple[Arrival, ...]:
        return generate(SHAPES["sharegpt"], requests=20, rate=1.0, context=2048, seed=seed)

    assert make(3) == make(3) != make(4)


def test_no_request_is_beyond_the_context() -> None:
    shape = Shape(Lengths(40.0, 1.5), Lengths(40.0, 1.5))
    trace = generate(shape, requests=2000, rate=1.0, context=301, seed=0)
    assert max(a.prompt for a in trace) == 150
    assert max(a.output for a in trace) == 151
    assert max(a.final for a in trace) <= 300


def test_a_mean_that_does_not_fit_is_refused() -> None:
    with pytest.raises(KvikError, match="larger --context"):
        generate(SHAPES["sharegpt"], requests=2, rate=1.0, context=256, seed=0)


@given(st.lists(ARRIVALS, min_size=1, max_size=20))
def test_what_is_written_is_read(trace: list[Arrival]) -> None:
    assert parse(dump(trace), "x") == tuple(sorted(trace, key=lambda a: a.time))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no requests"),
        ("\n\n", "holds no requests"),
        ('{"time": 0, "prompt": 1, "output": 1}\nnonsense', "line 2: expected"),
        ("[1, 2, 3]", "line 1: expected"),
        ("[" * 5000, "line 1: expected"),
        ('{"time": 0, "prompt": 1}', "line 1: expected"),
        ('{"time": -1, "prompt": 1, "output": 1}', "seconds"),
        ('{"time": NaN, "prompt": 1, "output": 1}', "seconds"),
        ('{"time": "0", "prompt": 1, "output": 1}', "seconds"),
        ('{"time": 0, "prompt": 0, "output": 1}', "whole numbers"),
        ('{"time": 0, "prompt": 1, "output": 1.5}', "whole numbers"),
        ('{"time": 0, "prompt": true, "output": 1}', "whole numbers"),
    ],
)
def test_a_bad_line_is_named(text: str, words: str) -> None:
    with pytest.raises(KvikError, match=words):
        parse(text, "x.jsonl")
