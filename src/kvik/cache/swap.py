"""Swapping: sequences leave the pool for host memory and come back as they were."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from kvik.cache.kvcache import KVCache
from kvik.cache.pageio import read_pages, write_pages
from kvik.cache.pool import Ids
from kvik.cache.table import EMPTY, RaggedTable, Sequence, State, Table
from kvik.errors import CapacityError


@dataclass(frozen=True, eq=False)
class Swapped:
    """Sequences outside the pool: every page that any of them held, once, and their states.

    ``states`` name pages by the ids they had: page ``ids[i][j]`` of size class i is row j of
    ``pages[i]`` [N, bytes of a page].
    """

    states: tuple[State, ...]
    ids: tuple[Ids, ...]
    pages: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of host memory: pages, tables and states."""
        return sum(p.numel() for p in self.pages) + sum(s.table_bytes for s in self.states)

    @property
    def demand(self) -> tuple[int, ...]:
        """Pages of each size class that :func:`swap_in` allocates."""
        return tuple(ids.size for ids in self.ids)


def swap_out(cache: KVCache, sequences: Seq[Sequence]) -> Swapped:
    """Copies the sequences to host memory and frees them.

    Pages that others still reference stay in the pool for them.
    """
    states = tuple(s.state for s in sequences)
    ids = cache.distinct_pages(states)
    sizes = cache.pool.page_bytes
    pages = tuple(read_pages(cache.pool, n, i) for n, i in zip(sizes, ids, strict=True))
    swapped, empty = Swapped(states, ids, pages), cache.create().state
    try:
        for sequence in sequences:
            sequence.state = empty
        cache.pool.release(np.concatenate([EMPTY, *(state.pages() for state in states)]))
    except BaseException:
        for sequence, state in zip(sequences, states, strict=True):
            sequence.state = state
        raise
    return swapped


def swap_in(cache: KVCache, swapped: Swapped) -> list[Sequence]:
    """The sequences again, bit by bit and with the same sharing between them.

    CapacityError, and nothing changed, when the pool has no room; ``swapped`` stays valid.
    """
    pool = cache.pool
    if not pool.can_alloc(swapped.demand):
        raise CapacityError(
            f"the KV pool has no room for {swapped.nbytes:,} bytes of swapped sequences; "
            "free others first"
        )
    fresh: list[Ids] = []
    try:
        for nbytes, page in zip(pool.page_bytes, swapped.pages, strict=True):
            fresh.append(pool.alloc(nbytes, page.shape[0]))
            write_pages(pool, nbytes, fresh[-1], page)
        states = [_moved(cache, state, swapped.ids, fresh) for state in swapped.states]
        pool.retain(np.concatenate([EMPTY, *(state.pages() for state in states)]))
    finally:
        # One reference for each table that holds a page, none for the swap itself.
        for ids in fresh:
            pool.release(ids)
    return [Sequence(state) for state in states]


def _moved(cache: KVCache, state: State, old: Seq[Ids], new: Seq[Ids]) -> State:
    """The state with page ids ``old`` replaced by ``new``, class by class."""
    tables = iter(
        new[index][np.searchsorted(old[index], table.pages)] for index, table in cache.tables(state)
    )
    main: list[Table | RaggedTable] = []
    tail: list[Table | None] = []
    for table, held in zip(state.main, state.tail, strict=True):
        if isinstance(table, RaggedTable):
            main.append(RaggedTable(table.positions, next(tables), table.mass))
        else:
            main.append(Table(table.numbers, next(tables)))
        tail.append(None if held is None else Table(held.numbers, next(tables)))
    return State(state.length, tuple(main), tuple(tail), state.layer_states)
