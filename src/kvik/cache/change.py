"""How a table changes in a step: which pages stay, which are copied, which are new.

Worked out in whole ranges of page numbers before any page is allocated.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvik.cache.pool import Ids, PagePool
from kvik.cache.table import EMPTY, Table
from kvik.recipe.plan import Group, page_ranges
from kvik.recipe.retention import FOREVER, Ranges

NEW = -1  # in place of an index into the old table's pages


class TableChange:
    """From the table ``old`` to ``new``, which is the old one until :meth:`settle`.

    ``need`` pages have to be allocated. A page that the step writes to and that others hold as
    well is copied first: ``copies`` are pairs of a fresh page and its source, both as indices.
    """

    __slots__ = ("_after", "_kept", "_parts", "copies", "fresh", "need", "new", "old")

    def __init__(
        self, pool: PagePool, old: Table, before: Ranges, after: Ranges, written: int
    ) -> None:
        """``before`` and ``after`` are ranges of page numbers; pages from ``written`` on change."""
        self.old = self.new = old
        self.fresh: Ids = EMPTY
        self.need = self._kept = 0
        self._after = after
        self._parts: list[tuple[int, int]] = []  # (first index, count), or (NEW, count)
        self.copies: list[tuple[int, int]] = []  # (which fresh page, index of its source)
        for first, stop in after:
            at = 0
            for low, high in before:
                a, b = max(first, low), min(stop, high)
                if a < b:
                    self._add(a - first)
                    first = b
                    edge = min(max(a, written), b)
                    self._keep(at + a - low, edge - a)
                    for index in range(at + edge - low, at + b - low):
                        if pool.shared(int(old.pages[index])):
                            self.copies.append((self.need, index))
                            self._add(1)
                        else:
                            self._keep(index, 1)
                at += high - low
            self._add(stop - first)

    def _keep(self, index: int, count: int) -> None:
        if count:
            self._parts.append((index, count))
            self._kept += count

    def _add(self, count: int) -> None:
        if count:
            self._parts.append((NEW, count))
            self.need += count

    def settle(self, fresh: Ids) -> None:
        """Builds the new table with the ``need`` pages that were allocated for it."""
        self.fresh = fresh
        if not self.need and self._kept == self.old.pages.size:
            return
        pages, used = [EMPTY], 0
        for index, count in self._parts:
            if index == NEW:
                pages.append(fresh[used : used + count])
                used += count
            else:
                pages.append(self.old.pages[index : index + count])
        self.new = Table(numbers_of(self._after), np.concatenate(pages))

    def cut(self, after: Ranges) -> Ids:
        """Keeps these page numbers alone, each as the new or else the old table has it.

        Returns the fresh pages that are not needed then.
        """
        numbers = numbers_of(after)
        pages = np.zeros(numbers.size, dtype=np.int32)
        for table in (self.old, self.new):
            mine = np.isin(table.numbers, numbers)
            pages[np.searchsorted(numbers, table.numbers[mine])] = table.pages[mine]
        self.new = Table(numbers, pages)
        self._kept = NEW
        return self.fresh[~np.isin(self.fresh, pages)]

    def dropped(self) -> Ids:
        """Pages of the old table that the new one no longer holds."""
        old = self.old.pages
        if self._kept == old.size:
            return EMPTY
        if self._kept == NEW:
            return old[~np.isin(old, self.new.pages)]
        gone = np.ones(old.size, dtype=np.bool_)
        for index, count in self._parts:
            if index != NEW:
                gone[index : index + count] = False
        return old[gone]


def numbers_of(ranges: Ranges) -> NDArray[np.int32]:
    """Page numbers as an array."""
    if len(ranges) == 1:
        return np.arange(*ranges[0], dtype=np.int32)
    return np.concatenate([EMPTY, *(np.arange(a, b, dtype=np.int32) for a, b in ranges)])


def changes(
    pool: PagePool,
    group: Group,
    tables: tuple[Table, Table | None],
    span: tuple[int, int],
    tentative: bool,
) -> list[TableChange]:
    """What the tokens ``span`` = [start, stop) change in the main and tail table of a group.

    A ``tentative`` step may be cut short, so it needs the pages of every possible end.
    """
    start, stop = span
    stops = range(start + 1, stop + 1) if tentative else (stop,)
    main, tail = tables
    found = [
        TableChange(
            pool,
            main,
            page_ranges(group.main_ranges(start), group.tokens),
            union([page_ranges(group.main_ranges(s), group.tokens) for s in stops]),
            first_closing(group, start, stop) // group.tokens,
        )
    ]
    if tail is not None:
        found.append(
            TableChange(
                pool,
                tail,
                page_ranges(group.tail_ranges(start), group.tokens),
                union([page_ranges(group.tail_ranges(s), group.tokens) for s in stops]),
                start // group.tokens,
            )
        )
    return found


def union(parts: list[Ranges]) -> Ranges:
    """The numbers that lie in any of several lists of ranges, as ascending ranges."""
    if len(parts) == 1:
        return parts[0]
    found: Ranges = []
    for a, b in sorted(r for ranges in parts for r in ranges):
        if found and a <= found[-1][1]:
            found[-1] = (found[-1][0], max(b, found[-1][1]))
        else:
            found.append((a, b))
    return found


def first_closing(group: Group, start: int, stop: int) -> int:
    """The first token that gets its code between two lengths; FOREVER when none does."""
    if group.tail is None:
        return start
    ends = [(c.closed(start), c.closed(stop)) for c in group.layers[0].codecs]
    return min((a for a, b in ends if a < b), default=FOREVER)


def steady(group: Group, seen: int, main: Table, tail: Table | None) -> tuple[int, list[int]]:
    """A length up to which the group's tables stay as they are after ``seen`` tokens.

    And the pages that are written to until then. Rather too short than too long.
    """
    tokens, window = group.tokens, group.kept.window
    stop = -(-seen // tokens) * tokens
    if group.tail is None:
        if window is not None:
            start = max(0, seen - window + 1)
            stop = min(stop, (start // tokens + 1) * tokens + window - 2)
        return stop, main.pages[-1:].tolist()
    if tail is None or window is not None or group.waiting(seen) == seen:
        return seen, []
    codecs = group.layers[0].codecs
    late = [c for c in codecs if not c.immediate]
    for codec in late:
        group_of, closed = codec.close_tokens, codec.closed(seen)
        stop = min(stop, codec.residual + (closed // group_of + 1) * group_of - 1)
    written = main.pages[-1:].tolist() if len(late) < len(codecs) else []
    return stop, written + tail.pages[-1:].tolist()
