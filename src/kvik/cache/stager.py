"""Which pages a sequence needs in a step, before any is allocated."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

from kvik.cache.change import TableChange, changes
from kvik.cache.evicting import EvictingStep
from kvik.cache.pool import PagePool
from kvik.cache.table import RaggedTable, State, Table
from kvik.recipe.plan import Plan

Change = TableChange | EvictingStep


class Stager:
    """Works out which pages a sequence needs, for one plan in one pool."""

    def __init__(self, plan: Plan, pool: PagePool) -> None:
        self.plan, self.pool = plan, pool
        self.nothing = (0,) * len(pool.page_bytes)
        self._classes = [
            [pool.page_bytes.index(page.nbytes) for page in (g.main, g.tail) if page]
            for g in plan.groups
        ]

    def tables(self, state: State) -> Iterator[tuple[int, Table | RaggedTable]]:
        """All tables of a state, each with the size class of its pages."""
        for classes, main, tail in zip(self._classes, state.main, state.tail, strict=True):
            yield classes[0], main
            if tail is not None:
                yield classes[1], tail

    def quiet(self, state: State, stop: int) -> bool:
        """Whether the sequence can go on to ``stop`` tokens with the very tables it has."""
        if stop > state.steady:
            return False
        return not any(map(self.pool.shared, state.open))

    def moving(self, states: Seq[State], counts: Seq[int]) -> list[int]:
        """Indices of the sequences that need other tables for so many tokens more each."""
        moving: list[int] = []
        written: list[int] = []
        for i, (state, count) in enumerate(zip(states, counts, strict=True)):
            if state.length + count > state.steady:
                moving.append(i)
            else:
                written += state.open
        if self.pool.any_shared(written):  # seldom: then each is asked for itself
            ends = enumerate(zip(states, counts, strict=True))
            moving = [i for i, (state, n) in ends if not self.quiet(state, state.length + n)]
        return moving

    def stage(self, state: State, stop: int, tentative: bool) -> list[tuple[int, Change]]:
        """What changes in each table, in the order of groups, with its size class."""
        found: list[tuple[int, Change]] = []
        span = (state.length, stop)
        for group, main, tail in zip(self.plan.groups, state.main, state.tail, strict=True):
            classes = self._classes[group.index]
            if isinstance(main, RaggedTable):
                found.append((classes[0], EvictingStep(self.pool, group, main, span)))
            else:
                tables = changes(self.pool, group, (main, tail), span, tentative)
                found += zip(classes, tables, strict=True)
        return found

    def demand(self, state: State, stop: int) -> tuple[int, ...]:
        """Pages of each size class that the sequence needs to get to ``stop`` tokens."""
        if self.quiet(state, stop):
            return self.nothing
        need = list(self.nothing)
        for index, change in self.stage(state, stop, False):
            need[index] += change.need
        return tuple(need)

    def demand_of(self, states: Seq[State], counts: Seq[int]) -> tuple[int, ...]:
        """The same for several sequences together, each going on by so many tokens."""
        need = list(self.nothing)
        for i in self.moving(states, counts):
            for index, pages in enumerate(self.demand(states[i], states[i].length + counts[i])):
                need[index] += pages
        return tuple(need)
