"""A step of a batch: staged for all its sequences at once, then published or dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kvik.cache.change import TableChange, steady
from kvik.cache.evicting import EvictingStep
from kvik.cache.pageio import copy_pages
from kvik.cache.pool import Ids
from kvik.cache.positional import PositionalStep
from kvik.cache.stager import Change, Stager
from kvik.cache.table import EMPTY, RaggedTable, Sequence, State, Table
from kvik.ops import Keys
from kvik.recipe.plan import page_ranges
from kvik.recipe.retention import FOREVER


class Work:
    """One sequence's part of a step: rows ``low .. high`` of the flat batch."""

    def __init__(self, start: int, low: int, count: int) -> None:
        self.start, self.low, self.count, self.high = start, low, count, low + count
        self.groups: list[PositionalStep | EvictingStep] = []
        self.deferred: list[Callable[[], None]] = []
        self.shared: dict[int, Keys] = {}


class Step:
    """A step under way. Sequences that need no other tables are not staged at all."""

    def __init__(
        self, stager: Stager, sequences: Seq[Sequence], counts: Seq[int], tentative: bool
    ) -> None:
        """CapacityError when the pool has not enough pages; nothing has changed then."""
        self.stager, self.pool, self.plan = stager, stager.pool, stager.plan
        self.sequences, self.counts, self.tentative = tuple(sequences), tuple(counts), tentative
        self.before = [s.state for s in sequences]
        self.written: dict[int, list[Tensor]] = {}
        self._fresh: list[Ids] = []
        self._staged = self._stage()
        try:
            self._allocate()
        except BaseException:
            self.abort()
            raise

    def _stage(self) -> dict[int, list[tuple[int, Change]]]:
        found = {}
        for i in self.stager.moving(self.before, self.counts):
            state = self.before[i]
            found[i] = self.stager.stage(state, state.length + self.counts[i], self.tentative)
        return found

    def _allocate(self) -> None:
        """One request a size class for the whole batch, handed out to the tables in order."""
        sizes = self.pool.page_bytes
        by_class: list[list[Change]] = [[] for _ in sizes]
        for staged in self._staged.values():
            for index, change in staged:
                by_class[index].append(change)
        for nbytes, mine in zip(sizes, by_class, strict=True):
            need = sum(change.need for change in mine)
            fresh = self.pool.alloc(nbytes, need) if need else EMPTY
            self._fresh.append(fresh)
            at, sources, targets = 0, [], []
            for change in mine:
                change.settle(fresh[at : at + change.need])
                at += change.need
                if isinstance(change, TableChange) and change.copies:
                    sources += [int(change.old.pages[index]) for _, index in change.copies]
                    targets += [int(change.fresh[which]) for which, _ in change.copies]
            if sources:
                copy_pages(self.pool, nbytes, _ids(sources), _ids(targets))

    @cached_property
    def at(self) -> list[int]:
        """Position of every row of the flat batch."""
        spans = zip(self.before, self.counts, strict=True)
        return [p for (start, *_), n in spans for p in range(start, start + n)]

    @cached_property
    def positions(self) -> Tensor:
        """The same as int64 [N]."""
        return torch.from_numpy(np.array(self.at, dtype=np.int64))

    @cached_property
    def works(self) -> list[Work]:
        """What attention needs for each sequence."""
        found, low = [], 0
        for i, (state, count) in enumerate(zip(self.before, self.counts, strict=True)):
            found.append(Work(state.length, low, count))
            found[-1].groups = self._groups(state, count, self._staged.get(i))
            low += count
        return found

    def tables(self, group: int) -> Iterator[tuple[Table, Table]]:
        """Each sequence's main table before and after the step, of a group kept by position."""
        for i, state in enumerate(self.before):
            old = state.main[group]
            assert isinstance(old, Table)
            if i not in self._staged:
                yield old, old
                continue
            before = sum(1 + (tail is not None) for tail in state.tail[:group])
            change = self._staged[i][before][1]
            assert isinstance(change, TableChange)
            yield old, change.new

    def _groups(
        self, state: State, count: int, staged: list[tuple[int, Change]] | None
    ) -> list[PositionalStep | EvictingStep]:
        moved = iter([change for _, change in staged or ()])
        span = (state.length, state.length + count)
        found: list[PositionalStep | EvictingStep] = []
        for group, main, tail in zip(self.plan.groups, state.main, state.tail, strict=True):
            if isinstance(main, RaggedTable):
                step = next(moved)
                assert isinstance(step, EvictingStep)
                found.append(step)
            else:
                new = (main, tail) if staged is None else _new(moved, tail is not None)
                found.append(PositionalStep(self.pool, group, (main, tail), new, span))
        return found

    # The end of a step

    def commit(self, accepted: Seq[int] | None) -> None:
        """Publishes all sequences or, when anything interrupts, none: then the step is dropped."""
        if self.plan.recompute:
            return
        try:
            stops = self.counts if accepted is None else tuple(accepted)
            gone = self._shrink(stops) if self.tentative else []
            after = [
                State(length + count, main, tail, layers, until, written)
                for (length, main, tail, layers, until, written), count in zip(
                    self.before, stops, strict=True
                )
            ]
            for i, staged in self._staged.items():
                after[i] = self._moved(after[i], iter([change for _, change in staged]))
                gone += [ids for _, change in staged if (ids := change.dropped()).size]
            if self.written:
                after = [self._with_layer_states(i, state) for i, state in enumerate(after)]
            for sequence, state in zip(self.sequences, after, strict=True):
                sequence.state = state
            if gone:
                self.pool.release(np.concatenate(gone))
        except BaseException:
            for sequence, state in zip(self.sequences, self.before, strict=True):
                sequence.state = state
            self.abort()
            raise

    def abort(self) -> None:
        """Gives back what was allocated; every sequence is as it was before the step."""
        if self._fresh:
            self.pool.release(np.concatenate(self._fresh))
            self._fresh = []

    def _shrink(self, stops: tuple[int, ...]) -> list[Ids]:
        """Takes drafts back and writes what is left; returns fresh pages that nobody needs."""
        spare = []
        for i, staged in self._staged.items():
            state, moved = self.before[i], iter([change for _, change in staged])
            seen = state.length + stops[i]
            for group, tail in zip(self.plan.groups, state.tail, strict=True):
                main_ranges = page_ranges(group.main_ranges(seen), group.tokens)
                spare.append(_table_change(moved).cut(main_ranges))
                if tail is not None:
                    tail_ranges = page_ranges(group.tail_ranges(seen), group.tokens)
                    spare.append(_table_change(moved).cut(tail_ranges))
        for i, (work, count) in enumerate(zip(self.works, stops, strict=True)):
            state, moved = self.before[i], iter([change for _, change in self._staged.get(i, ())])
            for step, tail in zip(work.groups, state.tail, strict=True):
                assert isinstance(step, PositionalStep)
                step.stop = work.start + count
                if i in self._staged:
                    step.table, step.tail = _new(moved, tail is not None)
            for write in work.deferred:
                write()
        return spare

    def _moved(self, state: State, moved: Iterator[Change]) -> State:
        """The state with the tables that were staged for it."""
        main: list[Table | RaggedTable] = []
        tail: list[Table | None] = []
        until, written = FOREVER, []
        for group, old, held in zip(self.plan.groups, state.main, state.tail, strict=True):
            if isinstance(old, RaggedTable):
                main.append(next(moved).new)
                tail.append(None)
                until = -1
                continue
            table, kept = _new(moved, held is not None)
            main.append(table)
            tail.append(kept)
            end, pages = steady(group, state.length, table, kept)
            until = min(until, end)
            written += pages
        layers = state.layer_states
        return State(state.length, tuple(main), tuple(tail), layers, until, tuple(written))

    def _with_layer_states(self, i: int, state: State) -> State:
        now = list(state.layer_states)
        for layer, rows in self.written.items():
            now[layer] = rows[i]
        return state._replace(layer_states=tuple(now))


def _ids(pages: list[int]) -> Ids:
    return np.array(pages, dtype=np.int32)


def _table_change(moved: Iterator[Change]) -> TableChange:
    change = next(moved)
    assert isinstance(change, TableChange)
    return change


def _new(moved: Iterator[Change], has_tail: bool) -> tuple[Table, Table | None]:
    main = _table_change(moved).new
    return main, _table_change(moved).new if has_tail else None
