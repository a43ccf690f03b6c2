"""From the state of a sequence to what an entry lists of it, and back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kvik.cache import KVCache, State
from kvik.cache.table import RaggedTable, Table
from kvik.engine.identity import Text
from kvik.engine.prefix_entry import Entry, Main
from kvik.recipe.plan import Group, page_ranges


def part(state: State, start: int, stop: int, groups: tuple[Group, ...]) -> Main:
    """What an entry lists of the tokens start .. stop where all pages of all tokens are kept.

    ``start`` is the beginning of a page in every group.
    """
    own: list[Table | RaggedTable] = []
    for group, table in zip(groups, state.main, strict=True):
        assert isinstance(table, Table)
        pages = slice(start // group.tokens, -(-stop // group.tokens))
        # Copies: a view would keep the whole table of the sequence alive.
        own.append(Table(table.numbers[pages].copy(), table.pages[pages].copy()))
    return tuple(own)


def addition(state: State, known: State, groups: tuple[Group, ...]) -> Main:
    """What an entry for ``state`` lists below one whose whole prefix has the state ``known``."""
    own: list[Table | RaggedTable] = []
    for group, table, given in zip(groups, state.main, known.main, strict=True):
        if isinstance(table, Table) and isinstance(given, Table):
            table = _unlike(table, given, group.waiting(known.length) // group.tokens)
        own.append(table)
    return tuple(own)


def _unlike(table: Table, known: Table, complete: int) -> Table:
    """The part of ``table`` that ``known`` does not give.

    Pages from number ``complete`` on are not full in ``known`` and never count as given, so that
    a page inherited from an ancestor holds the same as that page of any entry put in between.
    """
    whole = known.numbers < complete
    new = ~np.isin(_pairs(table), _pairs(known)[whole])
    return Table(table.numbers[new], table.pages[new])


def _pairs(table: Table) -> NDArray[np.int64]:
    return table.numbers.astype(np.int64) << 32 | table.pages


def state_of(entry: Entry, groups: tuple[Group, ...]) -> State:
    """The state of an entry's whole prefix: its ancestors' pages, later ones over earlier ones."""
    main: list[Table | RaggedTable] = []
    path = entry.path()
    for index, group in enumerate(groups):
        own = entry.main[index]
        if isinstance(own, RaggedTable):
            main.append(own)
            continue
        tables = [t for e in path if isinstance(t := e.main[index], Table)]
        numbers = np.concatenate([t.numbers for t in tables])[::-1]
        pages = np.concatenate([t.pages for t in tables])[::-1]
        numbers, latest = np.unique(numbers, return_index=True)
        wanted = np.zeros(numbers.size, dtype=np.bool_)
        for first, stop in page_ranges(group.main_ranges(entry.length), group.tokens):
            wanted |= (numbers >= first) & (numbers < stop)
        main.append(Table(numbers[wanted], pages[latest][wanted]))
    return State(entry.length, tuple(main), entry.tail, entry.layer_states)


@dataclass(frozen=True)
class Hit:
    """The first ``length`` tokens of ``text`` are stored, by ``entry``; 0 and None for a miss.

    It holds no pages: what eviction leaves of it is found again when it is taken.
    """

    length: int
    entry: Entry | None
    text: Text
    cache: KVCache

    @cached_property
    def state(self) -> State:
        """The state to restore, without references of its own to its pages."""
        if self.entry is None:
            return self.cache.create().state
        state = state_of(self.entry, self.cache.resolved.groups)
        if self.length < state.length:
            state = self.cache.cut_state(state, self.length)
        return state
