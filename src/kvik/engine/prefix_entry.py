"""An entry of a prefix cache and its place among the others."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter

import numpy as np
from torch import Tensor

from kvik.cache.pool import Ids
from kvik.cache.table import EMPTY, RaggedTable, Table
from kvik.engine.identity import common_prefix
from kvik.recipe.plan import Group

Main = tuple[Table | RaggedTable, ...]
Symbols = tuple[int, ...]
_symbols = attrgetter("symbols")


class Entry:
    """A prefix of ``length`` tokens: its own last tokens and what its ancestors do not hold.

    ``symbols`` are the tokens (with marks) behind the parent's prefix. ``main`` has per group the
    pages in which the prefix's table differs from what the ancestors give, or a whole ragged
    table; ``tail`` and ``layer_states`` are whole. ``children`` are in order of their symbols and
    none is the beginning of another, so that the neighbours of a text in that order are the ones
    that have most in common with it. ``parent`` is None for a root and for an entry given up.
    """

    __slots__ = (
        "children",
        "digest",
        "domain",
        "layer_states",
        "length",
        "main",
        "pages",
        "parent",
        "queued",
        "reach",
        "symbols",
        "tail",
        "used",
    )

    def __init__(
        self,
        parent: Entry | None,
        digest: bytes,
        length: int,
        symbols: Symbols,
        main: Main,
        tail: tuple[Table | None, ...],
        layer_states: tuple[Tensor | None, ...],
    ) -> None:
        self.parent, self.digest, self.length, self.symbols = parent, digest, length, symbols
        self.main, self.tail, self.layer_states = main, tail, layer_states
        self.domain: str = "" if parent is None else parent.domain
        pages = [t.pages for t in (*main, *tail) if t is not None]
        self.pages: Ids = pages[0] if len(pages) == 1 else np.concatenate([EMPTY, *pages])
        self.children: list[Entry] = []
        self.reach = 0  # most symbols that a child ever had
        self.used, self.queued = 0, False

    def path(self) -> list[Entry]:
        """The entries from the root to this one."""
        path, entry = [self], self.parent
        while entry is not None:
            path.append(entry)
            entry = entry.parent
        return path[::-1]

    def held(self, groups: tuple[Group, ...]) -> Iterator[tuple[int, Ids]]:
        """The listed pages with the bytes of each, group by group."""
        for group, main, tail in zip(groups, self.main, self.tail, strict=True):
            yield group.main.nbytes, main.pages
            if group.tail is not None and tail is not None:
                yield group.tail.nbytes, tail.pages

    @property
    def state_bytes(self) -> int:
        """Bytes outside the pool: ragged tables with their policy state, layer states."""
        ragged = [t.nbytes for t in self.main if isinstance(t, RaggedTable)]
        states = [s.numel() * s.element_size() for s in self.layer_states if s is not None]
        return sum(ragged) + sum(states)

    # Children by their symbols

    def child_of(self, symbols: list[int], limit: int) -> Entry | None:
        """The child whose prefix is that of the text ``symbols``, at most ``limit`` long."""
        if not self.children:
            return None
        rest = tuple(symbols[self.length : min(limit, self.length + self.reach)])
        at = bisect_right(self.children, rest, key=_symbols)
        found = self.children[at - 1] if at else None
        return found if found and rest[: len(found.symbols)] == found.symbols else None

    def nearest(self, symbols: list[int], limit: int) -> list[tuple[int, Entry]]:
        """Up to four children that begin like the text, and the length of the common prefix.

        Most in common first, then the shortest. Only the neighbours of the text are looked at.
        """
        rest = tuple(symbols[self.length : min(limit, self.length + self.reach)])
        at = bisect_left(self.children, rest, key=_symbols)
        found = [
            (common_prefix(rest, c.symbols), c) for c in self.children[max(0, at - 2) : at + 2]
        ]
        found.sort(key=lambda pair: (-pair[0], pair[1].length))
        return [(self.length + n, child) for n, child in found if n]

    def extended_by(self, symbols: Symbols) -> list[Entry]:
        """The children that begin with ``symbols``."""
        if not self.children:
            return []
        low = high = bisect_left(self.children, symbols, key=_symbols)
        while high < len(self.children) and (
            self.children[high].symbols[: len(symbols)] == symbols
        ):
            high += 1
        return self.children[low:high]

    def add(self, child: Entry) -> None:
        """Puts in a new child; the children that go on from it become its own."""
        size, beyond = len(child.symbols), self.extended_by(child.symbols)
        low = bisect_left(self.children, child.symbols, key=_symbols) if self.children else 0
        self.children[low : low + len(beyond)] = [child]
        self.reach = max(self.reach, size)
        for other in beyond:
            other.parent, other.symbols = child, other.symbols[size:]
            child.reach = max(child.reach, len(other.symbols))
        child.children = beyond

    def remove(self, child: Entry) -> None:
        """Takes a child out; it counts as given up from now on."""
        del self.children[bisect_left(self.children, child.symbols, key=_symbols)]
        child.parent = None
