"""What the baselines reserve, and where their bytes are, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench import small

from kvik.bench.parts import Parts
from kvik.bench.reservation import POLICIES, Reservation
from kvik.bench.simulate import Request, simulate
from kvik.bench.trace import Arrival
from kvik.errors import CapacityError


def reservation(policy: str, slots: int, longest: int = 64) -> Reservation:
    return Reservation(policy, budget=slots * 10 + 3, slot_bytes=10, longest=longest)


@given(st.integers(1, 1024), st.integers(1, 1024))
def test_a_reservation_suffices_and_knows_more_from_policy_to_policy(p: int, o: int) -> None:
    arrival = Arrival(0.0, p, o)
    most, pow2, oracle = (POLICIES[name](arrival, 2048) for name in ("Max", "Pow2", "Oracle"))
    assert 2048 == most >= pow2 >= oracle == arrival.final
    assert pow2 - p < 2 * o


def watched(policy: str, slots: int, *arrivals: Arrival) -> list[Parts]:
    seen: list[Parts] = []

    def watch(parts: Parts, running: Sequence[Request]) -> None:
        seen.append(parts)

    simulate(arrivals, reservation(policy, slots), step_seconds=1.0, watch=watch)
    return seen


def test_one_request_by_hand() -> None:
    """5 tokens in, 4 out: 5, 6, 7, 8 cached; Pow2 sets 5 + 4 aside in a block of 16."""
    by_hand = {
        "Max": [(n, 8 - n, 56, 0) for n in (5, 6, 7, 8)],
        "Pow2": [(n, 8 - n, 1, 7) for n in (5, 6, 7, 8)],
        "Oracle": [(n, 8 - n, 0, 0) for n in (5, 6, 7, 8)],
    }
    for policy, slots in by_hand.items():
        seen = watched(policy, 64, Arrival(0.0, 5, 4))
        assert [(p.tokens, p.reserved, p.internal, p.external) for p in seen] == [
            tuple(10 * n for n in step) for step in slots
        ]
        assert all(p.leftover == p.stranded == 0 for p in seen)


def test_free_slots_are_idle_left_over_or_a_hole() -> None:
    # 8 + 8 + 4 slots of 20; the next in line needs 8 and finds 4: too few of any shape.
    line = [Arrival(0.0, n, 1) for n in (8, 8, 4, 8)]
    first, second = watched("Oracle", 24, *line)
    assert (first.tokens, first.external, first.leftover, first.idle) == (200, 0, 43, 0)
    assert (second.tokens, second.leftover, second.idle) == (80, 0, 163)


def test_enough_slots_in_the_wrong_places_are_external() -> None:
    # Blocks of 4: two go after the first step, two after the second, and the last needs 8.
    four = [Arrival(0.0, 4, 1), Arrival(0.0, 3, 2)]
    seen = watched("Oracle", 16, *four, *four, Arrival(0.0, 8, 1))
    assert [(p.external, p.leftover, p.idle) for p in seen] == [(0, 3, 0), (80, 3, 0), (0, 0, 83)]


@pytest.mark.parametrize("policy", POLICIES)
def test_parts_add_up_at_every_step(policy: str) -> None:
    setting = small.setting()
    system = next(s for s in setting.systems() if s.name == policy)
    steps = 0

    def watch(parts: Parts, running: Sequence[Request]) -> None:
        nonlocal steps
        steps += 1
        assert parts.total == setting.budget
        assert min(parts) >= 0
        assert sum(parts.shares().values()) == pytest.approx(1)
        assert parts.tokens == setting.slot * sum(r.cached for r in running)

    run = simulate(small.trace(), system, step_seconds=1.0, watch=watch)
    assert run.finished == 60
    assert run.steps <= steps


def test_max_admits_what_the_division_says() -> None:
    setting = small.setting()
    run = simulate(small.trace(), setting.systems()[0], step_seconds=1.0)
    assert run.peak == 1500 // 256


def test_first_come_first_served() -> None:
    """A long request at the head keeps short ones behind it waiting."""
    line = [Arrival(0.0, 40, 3), Arrival(0.0, 60, 1), Arrival(0.0, 1, 1)]
    steps: list[list[int]] = []

    def watch(parts: Parts, running: Sequence[Request]) -> None:
        steps.append([request.arrival.prompt for request in running])

    run = simulate(line, reservation("Oracle", 64), step_seconds=1.0, watch=watch)
    assert steps == [[40], [40], [40], [60], [1]]
    assert run.wait == (0 + 3 + 4) / 3


def test_a_request_that_never_fits_is_refused() -> None:
    with pytest.raises(CapacityError, match="Oracle cannot hold the next request in 323 bytes"):
        simulate([Arrival(0.0, 40, 1)], reservation("Oracle", 32), step_seconds=1.0)


class Forgets(Reservation):
    """Frees nothing at the end of a request."""

    def end(self, request: Request) -> None:
        self._address.pop(request)


class Doubles(Reservation):
    """Counts a slot twice."""

    def parts(self) -> Parts:
        return super().parts()._replace(internal=10)


@pytest.mark.parametrize("broken", [Forgets, Doubles])
def test_broken_books_are_noticed(broken: type[Reservation]) -> None:
    system = broken("Oracle", budget=643, slot_bytes=10, longest=64)
    with pytest.raises(RuntimeError, match="Oracle"):
        simulate([Arrival(0.0, 5, 4)], system, step_seconds=1.0)
