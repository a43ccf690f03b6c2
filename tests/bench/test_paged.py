"""kvik's own structures under a trace: waste is what theory says; books that lie are noticed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from tests import tracers
from tests.bench import small

from kvik.bench.paged import Paged, slot_bytes
from kvik.bench.parts import Parts
from kvik.bench.simulate import Request, Run, simulate
from kvik.bench.trace import Arrival
from kvik.errors import CapacityError, KvikError
from kvik.recipe import Recipe

assert tracers.Heavy.names  # importing them registered them


@dataclass
class Seen:
    """Sums over all steps of a run."""

    run: Run
    internal: int = 0
    sequence_steps: int = 0
    external: list[int] = field(default_factory=list)


def measure(recipe: str, slots: int = 1500, rate: float = 2.0) -> Seen:
    setting = small.setting(recipe, slots)
    paged = Paged(setting.plan, budget=setting.budget)
    seen = Seen(None)  # type: ignore[arg-type]

    def watch(parts: Parts, running: Sequence[Request]) -> None:
        assert parts.total == setting.budget
        assert min(parts) >= 0
        assert parts.reserved == 0
        if recipe.startswith("fp16+"):
            assert parts.tokens == setting.slot * sum(r.cached for r in running)
        seen.internal += parts.internal
        seen.sequence_steps += len(running)
        seen.external.append(parts.external)

    seen.run = simulate(small.trace(rate=rate), paged, step_seconds=1.0, watch=watch)
    assert paged.pool.stats().free == paged.pool.nbytes
    return seen


@pytest.mark.parametrize("page", [8, 16, 32])
def test_internal_waste_is_half_a_page_a_sequence(page: int) -> None:
    """Growing by one token the waste of a sequence runs through page - 1, ..., 1, 0.

    Over whole cycles that is (page - 1) / 2 on average; a cycle of which k steps are missing
    moves the sum by at most k (page - k) / 2 <= page^2 / 8. Each admission can cut one cycle.
    """
    recipe = f"fp16+page:{page}"
    seen = measure(recipe, slots=3000)
    slot = slot_bytes(small.setting(recipe).plan)
    waste = seen.internal / slot / seen.sequence_steps
    cut = (60 + seen.run.preemptions) * page**2 / 8 / seen.sequence_steps
    assert abs(waste - (page - 1) / 2) <= cut
    assert waste <= page / 2 + cut
    assert cut < page / 8  # or the test says nothing


def test_nothing_is_external_within_a_size_class() -> None:
    for rate in (0.5, 2.0, 50.0):
        seen = measure("fp16+page:16", rate=rate)
        assert not any(seen.external)


@pytest.mark.parametrize(
    "recipe", ["fp16+page:16", "int8", "perchannel", "fp16@0+int4", "sinks:4+window:28"]
)
def test_stranded_bytes_are_few(recipe: str) -> None:
    seen = measure(recipe, slots=6000, rate=50.0)
    assert seen.run.parts.shares()["stranded"] <= 0.02
    assert seen.run.finished == 60


def test_what_is_full_is_preempted_and_recomputed() -> None:
    seen = measure("fp16+page:16", slots=600, rate=50.0)
    assert seen.run.preemptions > 0
    assert seen.run.finished == 60
    shares = seen.run.parts.shares()
    assert shares["tokens"] > 0.8


def test_the_newest_gives_way_and_the_oldest_never() -> None:
    plan = small.setting("fp16+page:8").plan
    paged = Paged(plan, budget=8 * 8 * slot_bytes(plan))
    old, new = Arrival(0.0, 16, 40), Arrival(0.0, 17, 40)
    running: list[list[int]] = []

    def watch(parts: Parts, now: Sequence[Request]) -> None:
        running.append([r.arrival.prompt for r in now])

    run = simulate([old, new], paged, step_seconds=1.0, watch=watch)
    assert run.preemptions > 0
    assert run.recomputed >= 17
    assert all(16 in now for now in running[:40])
    assert [16] in running
    assert sum(17 in now for now in running) == 40  # each token is produced once


def test_tokens_of_a_window_are_those_it_keeps() -> None:
    plan = small.setting("window:24").plan
    paged = Paged(plan, budget=2000 * slot_bytes(plan))
    tokens: list[int] = []
    simulate(
        [Arrival(0.0, 60, 20)],
        paged,
        step_seconds=1.0,
        watch=lambda parts, running: tokens.append(parts.tokens // slot_bytes(plan)),
    )
    assert set(tokens) == {23}  # with the query's own token 24


@pytest.mark.parametrize(
    ("recipe", "words"), [("none", "caches no tokens"), ("heavy:32", "chooses tokens by attention")]
)
def test_recipes_without_such_pages_are_refused(recipe: str, words: str) -> None:
    plan = Recipe.parse(recipe).resolve(small.SPEC)
    with pytest.raises(KvikError, match=words):
        Paged(plan, budget=1 << 20)


def test_a_request_that_never_fits_is_refused() -> None:
    plan = small.setting("fp16+page:8").plan
    paged = Paged(plan, budget=4 * 8 * slot_bytes(plan))
    with pytest.raises(CapacityError, match="kvik cannot hold one request of 33 tokens"):
        simulate([Arrival(0.0, 30, 20)], paged, step_seconds=1.0)


class Leaks(Paged):
    """Loses a page a step."""

    def step(self, running: Sequence[Request]) -> None:
        super().step(running)
        self.pool.alloc(self.pool.page_bytes[0], 1)


class Keeps(Paged):
    """Forgets to free what a request held."""

    def end(self, request: Request) -> None:
        self._sequences.pop(request)


class Flatters(Paged):
    """Calls whole pages tokens."""

    def parts(self, running: Sequence[Request], waiting: bool) -> Parts:
        parts = super().parts(running, waiting)
        return parts._replace(tokens=parts.tokens + 2 * parts.internal)


@pytest.mark.parametrize("broken", [Leaks, Keeps, Flatters])
def test_broken_books_are_noticed(broken: type[Paged]) -> None:
    setting = small.setting()
    with pytest.raises(RuntimeError, match="kvik"):
        simulate(small.trace(), broken(setting.plan, budget=setting.budget), step_seconds=1.0)
