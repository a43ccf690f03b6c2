"""The figures of a run that can be worked out by hand, and the open loop on a simulated clock."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik.bench.serving_load import Asked
from kvik.bench.serving_meter import Meter, spread
from kvik.bench.serving_run import Clock, serve
from kvik.errors import CapacityError


class Simulated(Clock):
    """Time that passes only when somebody says so."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def wait(self, moment: float) -> None:
        self.time = max(self.time, moment)


class OneByOne:
    """A server that runs one request at a time, a token a second; prompts of 9 are too long."""

    def __init__(self, load: list[Asked]) -> None:
        self.meter = Meter.of(load)
        self.queue: list[tuple[int, Asked]] = []

    @property
    def busy(self) -> bool:
        return bool(self.queue)

    def add(self, number: int, asked: Asked) -> None:
        if len(asked.prompt) > 8:
            raise CapacityError("too long")
        self.queue.append((number, asked))

    def step(self, clock: Clock) -> None:
        number, asked = self.queue[0]
        clock.wait(clock.now() + 1.0)
        self.meter.ran(1.0, 1, 100 * len(asked.prompt))
        self.meter.token(number, 7, clock.now())
        if len(self.meter.answers[number].tokens) == asked.output:
            self.queue.pop(0)


def test_figures_worked_out_by_hand() -> None:
    load = [
        Asked(1.0, (1,) * 3, 4),  # runs from 1 to 5
        Asked(2.0, (1,) * 9, 4),  # refused
        Asked(2.5, (1,) * 5, 2),  # waits until 5, ends at 7
        Asked(9.0, (1,), 1),  # finds the server idle
    ]
    told: list[int] = []
    meter = serve(OneByOne(load), load, Simulated, told.append)
    assert told == list(range(1, 8))
    found = meter.figures()
    assert [a.times for a in meter.answers] == [[2.0, 3.0, 4.0, 5.0], [], [6.0, 7.0], [10.0]]
    assert (found["completed"], found["refused"], found["failed"]) == (3, 1, 0)
    assert meter.answers[1].refused == "too long"
    assert found["seconds"] == 9.0
    assert found["tokens"] == 7
    assert found["tokens_s"] == pytest.approx(7 / 9)
    assert found["requests_s"] == pytest.approx(3 / 9)
    # From arrival, not from when the server had time for it.
    assert found["ttft"] == spread([1.0, 3.5, 1.0])
    assert found["itl"] == spread([1.0] * 4)
    assert found["latency"] == spread([4.0, 4.5, 1.0])
    assert found["concurrent_mean"] == pytest.approx(7 / 9)
    assert found["concurrent_peak"] == 1
    assert found["peak_bytes"] == 500


def test_nothing_measured_is_none_and_not_nought() -> None:
    load = [Asked(0.0, (1,) * 9, 4)]
    found = serve(OneByOne(load), load, Simulated).figures()
    assert (found["completed"], found["refused"], found["tokens_s"]) == (0, 1, 0.0)
    assert found["ttft"] is found["itl"] is found["latency"] is None


def test_an_unfinished_answer_is_not_completed() -> None:
    meter = Meter.of([Asked(0.0, (1,), 2)])
    meter.token(0, 5, 1.0)
    found = meter.figures()
    assert (found["completed"], found["tokens"]) == (0, 1)
    assert found["latency"] is None


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=60))
def test_percentiles_are_in_order_and_within_the_values(values: list[float]) -> None:
    found = spread(values)
    assert found is not None
    ordered = [min(values), found["p50"], found["p90"], found["p99"], max(values)]
    assert all(b >= a - 1e-9 for a, b in pairwise(ordered))
    assert found["mean"] == pytest.approx(np.mean(values))


def test_the_clock_waits_until_the_moment() -> None:
    clock = Clock()
    clock.wait(0.02)
    assert clock.now() >= 0.02
    clock.wait(0.0)
