"""Slabs of a pool: which page size each serves, which pages are free, and what that sums up to.

Every question about totals is answered from counters. Work on many pages is array work; a few
pages are counted one by one, which is faster then.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
NONE: Ids = np.empty(0, dtype=np.int32)
FEW = 96  # pages up to which counting one by one beats array work


class Class:
    """One page size: where its pages lie in a slab and how many are in use.

    ``live`` pages are referenced by anyone, ``used`` ones by others than the prefix cache;
    ``live_slabs`` and ``used_slabs`` hold at least one such page.
    """

    def __init__(self, rows: int, slab_rows: int) -> None:
        self.rows, self.per_slab = rows, slab_rows // rows
        self.live = self.used = self.live_slabs = self.used_slabs = 0
        self.open: list[int] = []  # heap: live slabs with free pages, and some that emptied since

    def spare(self, evict: bool) -> int:
        """Free pages in slabs that are in use (``evict``: if cached pages were given up)."""
        if evict:
            return self.used_slabs * self.per_slab - self.used
        return self.live_slabs * self.per_slab - self.live


class Slabs:
    """``slabs`` slabs of ``slab_rows`` rows that hold pages of ``sizes`` rows.

    A row is 64 bytes and a page id is the first row of the page.
    """

    def __init__(self, sizes: Sequence[int], slabs: int, slab_rows: int) -> None:
        self.slabs, self.slab_rows = slabs, slab_rows
        self.classes = [Class(rows, slab_rows) for rows in sizes]
        # References stand at a page's first multiple of what divides every size.
        self.unit = math.gcd(slab_rows, *sizes)
        self.per_slab = slab_rows // self.unit
        self._references = np.zeros(slabs * self.per_slab, dtype=np.int32)
        self._class = np.full(slabs, -1, dtype=np.int16)
        self._live = np.zeros(slabs, dtype=np.int32)
        self._used = np.zeros(slabs, dtype=np.int32)
        self.emptied: list[int] = []  # heap: empty slabs that were in use before
        self.untouched = 0  # slabs from here on were never in use
        self.gone: set[int] = set()  # empty slabs whose memory the system has back
        # The same memory for single pages: views of this kind are quicker at one item.
        self._reference, self._class_of = self._references.data, self._class.data
        self._live_in, self._used_in = self._live.data, self._used.data

    # Totals

    def empty(self, evict: bool = False) -> int:
        """Slabs without a live page (``evict``: without a used one)."""
        return self.slabs - sum(c.used_slabs if evict else c.live_slabs for c in self.classes)

    def room(self, index: int) -> int:
        """Pages of a class that can be taken now."""
        one = self.classes[index]
        return one.spare(False) + self.empty() * one.per_slab

    def fits(self, demand: Sequence[int], evict: bool) -> bool:
        """Whether ``demand[i]`` pages of each class i can be taken together."""
        slabs = 0
        for one, count in zip(self.classes, demand, strict=True):
            slabs += max(0, -(-(count - one.spare(evict)) // one.per_slab))
        return slabs <= self.empty(evict)

    def count(self, page: int) -> int:
        """References to one page."""
        return int(self._reference[page // self.unit])

    def any_shared(self, pages: Sequence[int]) -> bool:
        """Whether any of the pages has more than one reference."""
        if len(pages) > FEW:
            return bool((self.counts(np.array(pages, dtype=np.int32)) > 1).any())
        unit, references = self.unit, self._reference
        return any([references[page // unit] > 1 for page in pages])

    def counts(self, ids: Ids) -> NDArray[np.int32]:
        """References to each page."""
        return self._references[ids // self.unit]

    def rows(self, ids: Ids) -> dict[int, int]:
        """How many rows each live page has."""
        classes = (self._class_of[page // self.slab_rows] for page in ids.tolist())
        return {p: self.classes[c].rows for p, c in zip(ids.tolist(), classes, strict=True)}

    # Pages that change hands

    def take(self, index: int, count: int) -> Ids:
        """``count`` <= room(index) free pages with one reference each.

        Slabs in use fill up first, then empty ones, each time from the lowest on.
        """
        one = self.classes[index]
        parts: list[Ids] = []
        while one.open and count:
            slab = one.open[0]
            if self._class_of[slab] != index or self._live_in[slab] == one.per_slab:
                heapq.heappop(one.open)
                continue
            parts.append(self._fill(one, slab, count))
            count -= parts[-1].size
        if count:
            slabs = self._new_slabs(index, -(-count // one.per_slab))
            begin = self._begin if count <= FEW else self._begin_many
            parts.append(begin(one, slabs, count))
            one.used += count
            one.live += count
            one.used_slabs += len(slabs)
            one.live_slabs += len(slabs)
            if self._live_in[slabs[-1]] < one.per_slab:
                heapq.heappush(one.open, slabs[-1])
        return parts[0] if len(parts) == 1 else np.concatenate((NONE, *parts))

    def _fill(self, one: Class, slab: int, count: int) -> Ids:
        """The lowest free pages of a slab that is in use, at most ``count``."""
        step, first = one.rows // self.unit, slab * self.per_slab
        references = self._references[first : first + one.per_slab * step : step]
        slots = np.flatnonzero(references == 0)[:count]
        references[slots] = 1
        if not self._used_in[slab]:
            one.used_slabs += 1
        self._used_in[slab] += slots.size
        self._live_in[slab] += slots.size
        one.used += slots.size
        one.live += slots.size
        return (slots * one.rows + slab * self.slab_rows).astype(np.int32)

    def _begin(self, one: Class, slabs: list[int], count: int) -> Ids:
        """The first ``count`` pages of empty slabs, one by one."""
        pages: list[int] = []
        for slab in slabs:
            first, size = slab * self.slab_rows, min(count - len(pages), one.per_slab)
            pages += range(first, first + size * one.rows, one.rows)
            self._used_in[slab] = self._live_in[slab] = size
        for page in pages:
            self._reference[page // self.unit] = 1
        return np.array(pages, dtype=np.int32)

    def _begin_many(self, one: Class, slabs: list[int], count: int) -> Ids:
        """The same as array work."""
        where = np.array(slabs, dtype=np.int64)
        slots = np.arange(0, one.per_slab * one.rows, one.rows)
        pages = (where[:, None] * self.slab_rows + slots).reshape(-1)[:count]
        self._references[pages // self.unit] = 1
        filled = np.full(where.size, one.per_slab, dtype=np.int32)
        filled[-1] -= one.per_slab * where.size - count
        self._used[where] = self._live[where] = filled
        return pages.astype(np.int32)

    def _new_slabs(self, index: int, count: int) -> list[int]:
        """The lowest empty slabs; they serve the class from now on."""
        old = min(count, len(self.emptied))
        if old <= FEW:
            slabs = [heapq.heappop(self.emptied) for _ in range(old)]
        else:
            self.emptied.sort()
            slabs = self.emptied[:old]
            del self.emptied[:old]
        first = self.untouched
        self.untouched += count - old
        slabs += range(first, self.untouched)
        if count <= FEW:
            for slab in slabs:
                self._class_of[slab] = index
        else:
            self._class[slabs] = index
        if self.gone:
            self.gone.difference_update(slabs)
        return slabs

    def _move_one(self, page: int, *, used: int = 0, live: int = 0) -> None:
        """Counts a page out (or, as used, in); an empty slab serves any class again."""
        slab = page // self.slab_rows
        one = self.classes[self._class_of[slab]]
        if used:
            now = self._used_in[slab] + used
            self._used_in[slab] = now
            one.used += used
            if now == (used > 0):
                one.used_slabs += used
        if live:
            now = self._live_in[slab] + live
            self._live_in[slab] = now
            one.live += live
            if not now:
                one.live_slabs -= 1
                self._class_of[slab] = -1
                heapq.heappush(self.emptied, slab)
            elif now == one.per_slab - 1:
                heapq.heappush(one.open, slab)

    def _move(self, pages: Ids, *, used: int = 0, live: int = 0) -> None:
        """The same for ascending distinct pages, all slabs of a class at once."""
        if not pages.size:
            return
        slabs = pages // self.slab_rows
        stop = np.flatnonzero(slabs[1:] != slabs[:-1]) + 1
        first, stop = np.append(0, stop), np.append(stop, slabs.size)
        counts, slabs = stop - first, slabs[first]
        classes = self._class[slabs]
        for index in np.unique(classes).tolist() if len(self.classes) > 1 else (0,):
            one, mine = self.classes[index], classes == index
            where, count = slabs[mine], counts[mine]
            if used:
                before = self._used[where]
                after = before + used * count
                self._used[where] = after
                one.used += used * int(count.sum())
                one.used_slabs += int((after > 0).sum()) - int((before > 0).sum())
            if live:
                before = self._live[where]
                after = before + live * count
                self._live[where] = after
                one.live += live * int(count.sum())
                gone = after == 0
                one.live_slabs -= int(gone.sum())
                self._class[where[gone]] = -1
                _push(self.emptied, where[gone].tolist())
                _push(one.open, where[(before == one.per_slab) & ~gone].tolist())


def _push(heap: list[int], items: list[int]) -> None:
    heap += items
    heapq.heapify(heap)
