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
from kvik.engine.memory import Memory
from kvik.engine.scheduler import Limits
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
    assert paged.engine.cache.pool.stats().free == paged.engine.cache.pool.nbytes
    assert not paged.engine.scheduler.running
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
    cut = (60 + seen.run.preempted.recomputed) * page**2 / 8 / seen.sequence_steps
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


def test_what_is_full_is_preempted_and_computed_again() -> None:
    """The tokens that the engine computed again are those that preempted requests had cached."""
    setting = small.setting("fp16+page:16", slots=400)
    paged = Paged(setting.plan, budget=setting.budget)
    cached: dict[Request, int] = {}
    lost: list[int] = []

    def watch(parts: Parts, running: Sequence[Request]) -> None:
        # Who left without its last token was preempted.
        lost.extend(n for r, n in cached.items() if r not in running and not r.done)
        cached.clear()
        cached.update((r, r.cached) for r in running)

    run = simulate(small.trace(rate=50.0), paged, step_seconds=1.0, watch=watch)
    assert run.finished == 60
    assert run.preempted.swapped == 0
    assert run.preempted.recomputed == len(lost) > 0
    assert run.preempted.tokens == sum(lost)


def test_admission_and_preemption_are_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the room that it keeps back for those that run it preempts more often."""
    setting = small.setting("fp16+page:16", slots=800)

    def preempted() -> int:
        paged = Paged(setting.plan, budget=setting.budget)
        return simulate(small.trace(), paged, step_seconds=1.0).preempted.recomputed

    careful = preempted()
    monkeypatch.setattr(Memory, "reserve", lambda memory, sequences: memory.nothing)
    assert preempted() > 2 * careful


def test_the_newest_gives_way_and_the_oldest_never() -> None:
    plan = small.setting("fp16+page:8").plan
    paged = Paged(plan, budget=8 * 8 * slot_bytes(plan))
    old, new = Arrival(0.0, 16, 40), Arrival(0.0, 17, 40)
    running: list[list[int]] = []

    def watch(parts: Parts, now: Sequence[Request]) -> None:
        running.append([r.arrival.prompt for r in now])

    run = simulate([old, new], paged, step_seconds=1.0, watch=watch)
    assert run.preempted.recomputed > 0
    assert run.preempted.tokens >= 17
    assert all(16 in now for now in running[:40])
    assert [16] in running
    assert sum(17 in now for now in running) == 40  # each token is produced once


def test_parts_are_those_of_the_moment_before_memory_is_freed() -> None:
    plan = small.setting("fp16+page:8").plan
    one = slot_bytes(plan)
    seen: list[tuple[int, int, int, int]] = []

    def watch(parts: Parts, running: Sequence[Request]) -> None:
        seen.append(tuple(n // one for n in (*parts[:3], parts.idle)))  # type: ignore[arg-type]

    paged = Paged(plan, budget=32 * one)
    run = simulate([Arrival(0.0, 7, 3)], paged, step_seconds=1.0, watch=watch)
    assert seen == [(7, 0, 1, 24), (8, 0, 0, 24), (9, 0, 7, 16)]
    assert (run.finished, run.wait, run.seconds) == (1, 0.0, 3.0)


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
    with pytest.raises(CapacityError, match="50 tokens do not fit in the engine's"):
        simulate([Arrival(0.0, 30, 20)], paged, step_seconds=1.0)


class Leaks(Paged):
    """Loses a page a step."""

    def step(self) -> None:
        super().step()
        pool = self.engine.cache.pool
        pool.alloc(pool.page_bytes[0], 1)


class Keeps(Paged):
    """Never lets a request's pages go."""

    def end(self, request: Request) -> None:
        job = next(j for j in self.engine.scheduler.running if j.id == self._numbers[request])
        self.engine.cache.fork(job.live[0].sequence)  # type: ignore[arg-type]
        super().end(request)


class Flatters(Paged):
    """Calls whole pages tokens."""

    def parts(self) -> Parts:
        parts = super().parts()
        return parts._replace(tokens=parts.tokens + 2 * parts.internal)


@pytest.mark.parametrize("broken", [Leaks, Keeps, Flatters])
def test_broken_books_are_noticed(broken: type[Paged]) -> None:
    setting = small.setting()
    with pytest.raises(RuntimeError, match="kvik"):
        simulate(small.trace(), broken(setting.plan, budget=setting.budget), step_seconds=1.0)


def test_a_text_that_is_computed_in_parts_is_noticed() -> None:
    setting = small.setting()
    paged = Paged(setting.plan, budget=setting.budget)
    paged.engine.scheduler.limits = Limits(8, 256)
    with pytest.raises(RuntimeError, match="7 tokens are cached, not 22"):
        simulate(small.trace(), paged, step_seconds=1.0)
