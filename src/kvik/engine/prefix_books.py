"""The books of a prefix cache: which leaf goes next, which pages are listed, how much there is."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count

from kvik.cache.pool import PagePool
from kvik.engine.prefix_entry import Entry
from kvik.recipe.plan import Group


@dataclass(frozen=True)
class PrefixStats:
    """Live entries, the pages they list and all their bytes (each page once); what happened
    since the start: ``hits`` of ``hit_tokens`` in all, ``misses``, ``evictions``.
    """

    entries: int
    pages: int
    bytes: int
    hits: int
    hit_tokens: int
    misses: int
    evictions: int


class Leaves:
    """Entries without children, least recently used first.

    A heap with lazy deletion: a record of an entry that was used again goes back in with its new
    time, one of an entry that has children or is gone is dropped when it surfaces.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Entry]] = []
        self._order = count()
        self._gone = 0

    def push(self, entry: Entry) -> None:
        """An entry that is a leaf now; nothing happens when it is in already."""
        if not entry.queued:
            entry.queued = True
            heapq.heappush(self._heap, (entry.used, next(self._order), entry))

    def pop(self) -> Entry | None:
        """Takes out the leaf that was not used for longest; None without any."""
        while self._heap:
            used, _, entry = heapq.heappop(self._heap)
            entry.queued = False
            if entry.parent is None:
                self._gone -= 1
            elif not entry.children:
                if used == entry.used:
                    return entry
                self.push(entry)
        return None

    def forget(self, entry: Entry) -> None:
        """An entry was given up; its record must not pile up with others of its kind."""
        if not entry.queued:
            return
        self._gone += 1
        if 2 * self._gone > len(self._heap):
            self._heap = [record for record in self._heap if record[2].parent is not None]
            heapq.heapify(self._heap)
            self._gone = 0


class Listed:
    """The pages that entries list, each with one reference in the pool for every listing.

    ``counts`` says how many entries list a page, ``nbytes`` are the bytes of all entries with
    each page counted once.
    """

    def __init__(self, pool: PagePool, groups: tuple[Group, ...]) -> None:
        self._pool, self._groups = pool, groups
        self.counts: dict[int, int] = {}
        self.nbytes = 0

    def add(self, entry: Entry) -> None:
        """References the pages of a new entry."""
        self._pool.retain(entry.pages, cached=True)
        self.nbytes += entry.state_bytes
        for size, pages in entry.held(self._groups):
            for page in pages.tolist():
                known = self.counts.get(page, 0)
                self.counts[page] = known + 1
                self.nbytes += 0 if known else size

    def remove(self, entry: Entry) -> None:
        """Gives those references back."""
        self.nbytes -= entry.state_bytes
        for size, pages in entry.held(self._groups):
            for page in pages.tolist():
                self.counts[page] -= 1
                if not self.counts[page]:
                    del self.counts[page]
                    self.nbytes -= size
        self._pool.release(entry.pages, cached=True)
