"""The books of a pool: who references which page, the prefix cache counted apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvik.cache.slabs import FEW, Ids, Slabs


class Ledger(Slabs):
    """References to each page of the slabs. A page without any is free."""

    def __init__(self, sizes: Sequence[int], slabs: int, slab_rows: int) -> None:
        super().__init__(sizes, slabs, slab_rows)
        self._cached = np.zeros_like(self._references)
        self._cache = self._cached.data

    def retain(self, ids: Ids, cached: bool) -> None:
        """One more reference to each page; ValueError, and no change, for a freed page."""
        if ids.size <= FEW:
            self._retain_few(ids.tolist(), cached)
            return
        at = ids // self.unit
        counts = self._references[at]
        if not counts.all():
            raise ValueError("a freed page was retained")
        np.add.at(self._references, at, 1)
        if cached:
            np.add.at(self._cached, at, 1)
        else:
            self._move(np.unique(ids[counts == self._cached[at]]), used=1)

    def _retain_few(self, pages: list[int], cached: bool) -> None:
        unit, references = self.unit, self._reference
        for page in pages:
            if not references[page // unit]:
                raise ValueError("a freed page was retained")
        for page in pages:
            at = page // unit
            references[at] += 1
            if cached:
                self._cache[at] += 1
            elif references[at] == self._cache[at] + 1:
                self._move_one(page, used=1)

    def release(self, ids: Ids, cached: bool) -> Ids:
        """One reference less; returns the pages without any. ValueError, and no change, when
        a page is released more often than it was retained.
        """
        if ids.size <= FEW:
            return np.array(self._release_few(ids.tolist(), cached), dtype=np.int32)
        at = ids // self.unit
        left = self._cached if cached else self._references
        least = 0 if cached else self._cached[at]
        np.subtract.at(left, at, 1)
        if (left[at] < least).any():
            np.add.at(left, at, 1)
            raise ValueError("a page was released more often than retained")
        if cached:
            np.subtract.at(self._references, at, 1)
            freed: Ids = np.unique(ids[self._references[at] == 0])
            self._move(freed, live=-1)
            return freed
        counts = self._references[at]
        idle = np.unique(ids[counts == least])
        counts = self.counts(idle)
        self._move(idle[counts > 0], used=-1)
        freed = idle[counts == 0]
        self._move(freed, used=-1, live=-1)
        return freed

    def _release_few(self, pages: list[int], cached: bool) -> list[int]:
        unit, references, kept = self.unit, self._reference, self._cache
        asked: dict[int, int] = {}
        for page in pages:
            asked[page] = asked.get(page, 0) + 1
        for page, count in asked.items():
            at = page // unit
            if count > (kept[at] if cached else references[at] - kept[at]):
                raise ValueError("a page was released more often than retained")
        freed: list[int] = []
        for page, count in asked.items():
            at = page // unit
            references[at] -= count
            if cached:
                kept[at] -= count
            if not references[at]:
                freed.append(page)
                self._move_one(page, used=0 if cached else -1, live=-1)
            elif not cached and references[at] == kept[at]:
                self._move_one(page, used=-1)
        return freed
