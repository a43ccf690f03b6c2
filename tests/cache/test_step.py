"""A step of a batch: what it asks for, how it is published, and what an interrupt leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tracers
from tests.cache.common import STACKS, attend, build, run

from kvik.cache import KVCache, Sequence
from kvik.cache.change import TableChange, changes, numbers_of, steady
from kvik.cache.table import Table
from kvik.errors import CapacityError, KvikError
from kvik.recipe import Recipe
from kvik.recipe.plan import Group, page_ranges
from kvik.testing import models

assert tracers.Heavy.names  # importing them registered them


def watch(cache: KVCache, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(page size, pages) of every request to the pool from now on."""
    asked: list[tuple[int, int]] = []
    real = cache.pool.alloc

    def alloc(nbytes: int, count: int) -> Any:
        asked.append((nbytes, count))
        return real(nbytes, count)

    monkeypatch.setattr(cache.pool, "alloc", alloc)
    return asked


@pytest.mark.parametrize(("recipe", "model"), STACKS)
def test_demand_is_what_plan_allocates(
    recipe: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For steps of many sizes from many lengths, forks that share open pages included."""
    _, cache = build(recipe, model)
    sequence, chance = cache.create(), np.random.default_rng(0)
    others: list[Sequence] = []
    sizes = cache.pool.page_bytes
    while sequence.length < 70:
        if chance.random() < 0.2:
            others.append(cache.fork(sequence))
        batch = [sequence, *others[-2:]]
        for count in (1, 1, 5, 33):
            want = [sum(d) for d in zip(*(cache.demand(s, count) for s in batch), strict=True)]
            with monkeypatch.context() as patch:
                asked = watch(cache, patch)
                cache.plan(batch, [count] * len(batch))
                cache.abort()
            assert asked == [(n, w) for n, w in zip(sizes, want, strict=True) if w]
        run(cache, [sequence], [int(chance.integers(1, 6))])
    for one in [sequence, *others]:
        cache.free(one)
    assert cache.pool.stats().used == 0


@pytest.mark.parametrize(("recipe", "model"), STACKS)
def test_a_step_without_room_changes_nothing(recipe: str, model: str) -> None:
    _, cache = build(recipe, model)
    first = cache.create()
    run(cache, [first], [40])
    second = cache.fork(first)
    taken = cache.pool.alloc(cache.pool.page_bytes[0], 1)
    size = cache.pool.page_bytes[0]
    while cache.pool.can_alloc([int(n == size) for n in cache.pool.page_bytes]):
        taken = np.append(taken, cache.pool.alloc(size, 1))
    before = cache.pool.stats(), first.state, second.state
    with pytest.raises(CapacityError):
        cache.plan([first, second], [60, 60])
    assert (cache.pool.stats(), first.state, second.state) == before
    cache.pool.release(taken)
    run(cache, [first, second], [60, 60])


def test_a_quiet_step_keeps_the_very_tables() -> None:
    _, cache = build("int8", "plain")
    sequence = cache.create()
    run(cache, [sequence], [1])
    for length in range(2, 32):
        before = sequence.state
        run(cache, [sequence], [1])
        assert sequence.length == length
        assert sequence.state.main is before.main
    run(cache, [sequence], [2])
    assert sequence.state.main[0].pages.size == 2


def test_a_fork_copies_the_open_page_when_it_writes() -> None:
    _, cache = build("int8", "plain")
    first = cache.create()
    run(cache, [first], [37])
    second = cache.fork(first)
    assert cache.demand(first, 1) == cache.demand(second, 1) == (1,)
    run(cache, [second], [1])
    full, own = first.state.main[0].pages.tolist(), second.state.main[0].pages.tolist()
    assert full[0] == own[0]
    assert full[1] != own[1]
    assert cache.demand(first, 1) == (0,), "nobody else writes there any more"


@pytest.mark.parametrize("recipe", ["int8", "perchannel:4,residual=7", "sinks:5+window:19+page:4"])
def test_steady_tables_are_right(recipe: str) -> None:
    """Up to the length that ``steady`` names, the exact way changes nothing either."""
    plan = Recipe.parse(recipe).resolve(models.plain().spec)
    for group in plan.groups:
        quiet = 0
        for seen in range(1, 150):
            main, tail = tables(group, seen)
            stop, _ = steady(group, seen, main, tail)
            for later in range(seen + 1, stop + 1):
                quiet += 1
                for change in moves(group, (main, tail), (seen, later)):
                    assert change.need == 0
                    change.settle(change.fresh)
                    assert change.new is change.old
        assert quiet > 100, "it names such lengths"


class Alone:
    """A pool in which nothing is shared."""

    def shared(self, page: int) -> bool:
        return False


def tables(group: Group, seen: int) -> tuple[Table, Table | None]:
    numbers = [
        numbers_of(page_ranges(ranges(seen), group.tokens))
        for ranges in (group.main_ranges, group.tail_ranges)
    ]
    main, tail = (Table(n, n * 10) for n in numbers)
    return main, tail if group.tail else None


def moves(
    group: Group, old: tuple[Table, Table | None], span: tuple[int, int]
) -> list[TableChange]:
    return changes(Alone(), group, old, span, False)  # type: ignore[arg-type]


ranges_of_pages = st.lists(st.integers(0, 12), max_size=4, unique=True).map(
    lambda x: [(a, b) for a, b in zip(sorted(x)[::2], sorted(x)[1::2], strict=False)]
)


class Shared:
    """A pool in which chosen pages are shared."""

    def __init__(self, pages: set[int]) -> None:
        self.pages = pages

    def shared(self, page: int) -> bool:
        return page in self.pages


@settings(max_examples=200, deadline=None)
@given(ranges_of_pages, ranges_of_pages, st.integers(0, 13), st.sets(st.integers(100, 112)))
def test_changes_against_dictionaries(
    before: list[tuple[int, int]], after: list[tuple[int, int]], written: int, shared: set[int]
) -> None:
    """Pages stay where they can, shared ones that are written are copied, the rest is new."""
    numbers = numbers_of(before)
    old = dict(zip(numbers.tolist(), (numbers + 100).tolist(), strict=True))
    table = Table(numbers, numbers + 100)
    change = TableChange(Shared(shared), table, before, after, written)  # type: ignore[arg-type]
    wanted = numbers_of(after).tolist()
    stay = {n for n in wanted if n in old and not (n >= written and old[n] in shared)}
    assert change.need == len(wanted) - len(stay)
    change.settle(np.arange(500, 500 + change.need, dtype=np.int32))
    new = dict(zip(change.new.numbers.tolist(), change.new.pages.tolist(), strict=True))
    assert list(new) == wanted
    assert {n: new[n] for n in stay} == {n: old[n] for n in stay}
    assert sorted(new[n] for n in wanted if n not in stay) == change.fresh.tolist()
    copied = {n for n in wanted if n in old and n not in stay}
    pairs = {int(change.fresh[f]): int(table.pages[o]) for f, o in change.copies}
    assert pairs == {new[n]: old[n] for n in copied}
    assert sorted(change.dropped()) == sorted(set(old.values()) - set(new.values()))


# Interrupts


def points(cache: KVCache) -> list[tuple[object, str]]:
    """Places that a commit passes."""
    step = cache._now
    return [
        (cache.pool, "release"),
        (step, "_moved"),
        (step, "_shrink"),
        (step, "_with_layer_states"),
        (Table, "__init__"),
    ]


def failing(real: Callable[..., Any], after: int) -> Callable[..., Any]:
    """The function, which is interrupted once: at its call number ``after``."""
    calls = [0]

    def work(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == after + 1:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    return work


class Interrupted(Sequence):
    """A sequence whose state cannot be set once."""

    armed = False

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "state" and self.armed:
            self.armed = False
            raise KeyboardInterrupt
        super().__setattr__(name, value)


@pytest.mark.parametrize("where", range(6))
@pytest.mark.parametrize(("recipe", "model"), STACKS)
def test_an_interrupted_commit_publishes_nothing_and_leaks_nothing(
    recipe: str, model: str, where: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cache = build(recipe, model)
    first = cache.create()
    run(cache, [first], [9])
    last = Interrupted(cache.fork(first).state)
    batch = [first, cache.fork(first), last]
    before, stats = [s.state for s in batch], cache.pool.stats()
    tentative = recipe.startswith("int8") and model != "stateful"
    for after in (0, 1, 2):
        cache.plan(batch, [9, 1, 11], tentative=tentative)
        attend(cache, 21)
        with monkeypatch.context() as patch:
            if where < 5:
                target, name = points(cache)[where]
                patch.setattr(target, name, failing(getattr(target, name), after))
            last.armed = where == 5 and not after
            try:
                cache.commit([7, 1, 11] if tentative else None)
            except KeyboardInterrupt:
                assert [s.state for s in batch] == before
                assert cache.pool.stats() == stats
                with pytest.raises(KvikError, match="no step"):
                    cache.commit()
                continue
        break
    else:
        run(cache, batch, [9, 1, 11])
    assert (after > 0) == (where in reached(recipe, model)), "the interrupt struck"
    for sequence in batch:
        cache.free(sequence)
    assert cache.pool.stats().used == 0


def reached(recipe: str, model: str) -> set[int]:
    """Which of the points a commit of the stack passes."""
    drafts = {2, 4} if recipe.startswith("int8") and model != "stateful" else set()
    states = {3} if model == "stateful" else set()
    return {0, 1, 5} | drafts | states


def test_a_step_begins_and_ends_once() -> None:
    _, cache = build("int8", "plain")
    sequence = cache.create()
    with pytest.raises(KvikError, match="no step"):
        cache.commit()
    for bad in ([0], [-1], [1, 1]):
        with pytest.raises(KvikError, match="at least one new token"):
            cache.plan([sequence], bad)
    with pytest.raises(KvikError, match="only once"):
        cache.plan([sequence, sequence], [1, 1])
    cache.plan([sequence], [1])
    with pytest.raises(KvikError, match="already under way"):
        cache.plan([sequence], [1])
    with pytest.raises(KvikError, match="tentative"):
        cache.commit([1])
    cache.abort()
    cache.abort()
    cache.plan([sequence], [4], tentative=True)
    with pytest.raises(KvikError, match="5 of 4 tokens"):
        cache.commit([5])
    cache.commit([0])
    assert (sequence.length, cache.pool.stats().used) == (0, 0)


def test_positions_and_spans() -> None:
    _, cache = build("int8", "plain")
    a, b = cache.create(), cache.create()
    run(cache, [a], [5])
    cache.plan([a, b], [2, 3])
    assert cache.positions.tolist() == [5, 6, 0, 1, 2]
    assert cache.spans == [(0, 2), (2, 5)]
    cache.abort()
    cache.plan([], [])
    assert (cache.positions.tolist(), cache.spans) == ([], [])
