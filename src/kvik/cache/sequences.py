"""The sequences of a cache between two steps: begun, forked, cut, weighed and freed."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq

import numpy as np
import torch

from kvik.cache.back import can_cut, cut
from kvik.cache.pool import Ids, PagePool
from kvik.cache.stager import Stager
from kvik.cache.table import EMPTY, RaggedTable, Sequence, State, Table
from kvik.recipe.plan import Plan


class Sequences:
    """Sequences of one model under one plan in one pool."""

    def __init__(self, plan: Plan, pool: PagePool) -> None:
        self.resolved, self.pool = plan, pool
        self._stager = Stager(plan, pool)

    def create(self) -> Sequence:
        """An empty sequence."""
        groups = self.resolved.groups
        main = tuple(RaggedTable() if g.evicting else Table() for g in groups)
        tail = tuple(Table() if g.tail else None for g in groups)
        states = tuple(
            torch.zeros(layer.state_shape) if layer.kind == "state" else None
            for layer in self.resolved.spec.layers
        )
        return Sequence(State(0, main, tail, states))

    def snapshot(self, sequence: Sequence) -> State:
        """The sequence as it is now, its pages retained until :meth:`drop`."""
        self.pool.retain(sequence.state.pages())
        return sequence.state

    def restore(self, snapshot: State) -> Sequence:
        """A new sequence that continues from a snapshot; the snapshot stays valid."""
        self.pool.retain(snapshot.pages())
        return Sequence(snapshot)

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence with the same past; pages are shared until one of them differs."""
        return self.restore(sequence.state)

    def drop(self, state: State) -> None:
        """Gives up a snapshot's references."""
        self.pool.release(state.pages())

    def free(self, sequence: Sequence) -> None:
        """Ends a sequence; pages that nobody else holds are free at once."""
        self._replace(sequence, self.create().state, sequence.state.pages())

    def _replace(self, sequence: Sequence, state: State, gone: Ids) -> None:
        """Another state that no longer holds the pages ``gone``; the old one on an interrupt."""
        old = sequence.state
        try:
            sequence.state = state
            self.pool.release(gone)
        except BaseException:
            sequence.state = old
            raise

    def can_cut(self, sequence: Sequence, length: int) -> bool:
        """Whether the sequence can go back to ``length`` tokens with nothing to recompute."""
        return can_cut(self.resolved, sequence.state, length)

    def cut(self, sequence: Sequence, length: int) -> None:
        """Goes back to ``length`` tokens; the caller has asked :meth:`can_cut`."""
        old, new = sequence.state, cut(self.resolved, sequence.state, length)
        self._replace(sequence, new, old.pages()[~np.isin(old.pages(), new.pages())])

    def can_cut_state(self, state: State, length: int) -> bool:
        """Whether a state of ``length`` tokens can be had from this one as it is."""
        return can_cut(self.resolved, state, length)

    def cut_state(self, state: State, length: int) -> State:
        """The state after the first ``length`` tokens; no reference is counted."""
        return cut(self.resolved, state, length)

    def tables(self, state: State) -> Iterator[tuple[int, Table | RaggedTable]]:
        """All tables of a state, each with the index of its pages' size in ``pool.page_bytes``."""
        return self._stager.tables(state)

    def nbytes(self, *sequences: Sequence) -> int:
        """Bytes that the sequences hold: each page once, tables and states for each of them."""
        states = [s.state for s in sequences]
        pages = zip(self.pool.page_bytes, self.distinct_pages(states), strict=True)
        return sum(s.table_bytes for s in states) + sum(n * ids.size for n, ids in pages)

    def distinct_pages(self, states: Seq[State]) -> tuple[Ids, ...]:
        """The pages that states hold together, each once, for every one of the pool's sizes."""
        held: list[list[Ids]] = [[EMPTY] for _ in self.pool.page_bytes]
        for state in states:
            for index, table in self.tables(state):
                held[index].append(table.pages)
        return tuple(np.unique(np.concatenate(ids)) for ids in held)
