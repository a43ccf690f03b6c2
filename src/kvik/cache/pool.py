"""PagePool: every byte of K and V of a device, in pages of a few sizes over equal slabs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kvik.errors import CapacityError
from kvik.recipe.layout import ALIGN

Ids = NDArray[np.int32]
MAX_STRANDED = 0.02
MAX_BYTES = 2**31 * ALIGN  # what page ids of 32 bits can address


@dataclass(frozen=True)
class PoolStats:
    """Bytes of a pool: ``used`` in live pages, ``stranded`` at ends of slabs in use; else free."""

    total: int
    used: int
    stranded: int

    @property
    def free(self) -> int:
        """Bytes that can become pages now or once their slab is empty."""
        return self.total - self.used - self.stranded


def choose_slab(page_bytes: Sequence[int]) -> int:
    """The smallest slab that wastes at most 2 % of itself for every page size.

    A slab is a whole number of the largest pages; other sizes leave a remainder at its end.
    """
    largest = max(page_bytes)
    for count in range(1, 65):
        slab = largest * count
        if all(slab % size <= MAX_STRANDED * slab for size in page_bytes):
            return slab
    return largest * 64


class PagePool:
    """Pages of the sizes ``page_bytes`` in one buffer of whole slabs.

    A page id is the page's first 64-byte row in the buffer, so it is also its address. A slab
    serves one size at a time; a slab without live pages serves any size again. Pages are
    reference counted; the caller that drops the last reference frees the page for reuse at once.
    With ``poison`` freed pages are overwritten with NaN patterns, so that a read of a freed page
    cannot go unnoticed.
    """

    def __init__(
        self,
        page_bytes: Sequence[int],
        capacity: int,
        *,
        slab_bytes: int | None = None,
        poison: bool = False,
    ) -> None:
        """Raises CapacityError when the buffer cannot be allocated."""
        sizes = sorted(set(page_bytes)) or [ALIGN]
        if any(size <= 0 or size % ALIGN for size in sizes):
            raise ValueError(f"page sizes must be positive multiples of {ALIGN}: {sizes}")
        self.slab_bytes = slab_bytes or choose_slab(sizes)
        if self.slab_bytes % ALIGN or self.slab_bytes < sizes[-1]:
            raise ValueError(f"slabs of {self.slab_bytes} bytes do not hold pages of {sizes}")
        slabs = -(-capacity // self.slab_bytes)
        if slabs * self.slab_bytes > MAX_BYTES:
            raise CapacityError(
                f"a KV pool holds at most {MAX_BYTES:,} bytes, not {slabs * self.slab_bytes:,}; "
                "ask for less context or a smaller recipe"
            )
        self.page_bytes = tuple(sizes)
        try:
            self.buffer = torch.empty(slabs * self.slab_bytes, dtype=torch.uint8)
        except RuntimeError:
            raise CapacityError(
                f"cannot allocate {slabs * self.slab_bytes:,} bytes for the KV pool; "
                "ask for less context or a smaller recipe"
            ) from None
        self.poison = poison
        self._class_of_slab = np.full(slabs, -1, dtype=np.int32)
        per_slab = self.slab_bytes // sizes[0]
        self._references = np.zeros((slabs, per_slab), dtype=np.int32)
        self._live = np.zeros(slabs, dtype=np.int64)
        self._free_slabs = list(range(slabs - 1, -1, -1))
        self._free: list[list[int]] = [[] for _ in sizes]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole buffer."""
        return self.buffer.numel()

    def stats(self) -> PoolStats:
        """Bytes used and stranded at this moment."""
        used = stranded = 0
        for index, size in enumerate(self.page_bytes):
            slabs = (self._class_of_slab == index) & (self._live > 0)
            used += int(self._live[slabs].sum()) * size
            stranded += int(slabs.sum()) * (self.slab_bytes % size)
        return PoolStats(self.nbytes, used, stranded)

    def alloc(self, page_bytes: int, count: int) -> Ids:
        """``count`` new pages of one size, each with one reference. All or nothing."""
        index = self.page_bytes.index(page_bytes)
        free = self._free[index]
        slabs = -(-(count - len(free)) // (self.slab_bytes // page_bytes))
        if slabs > len(self._free_slabs):
            self._reclaim(keep=index)
        if slabs > len(self._free_slabs):
            raise CapacityError(
                f"the KV pool is full: {count} pages of {page_bytes:,} bytes asked, "
                f"{len(free)} free of {self.nbytes:,} bytes in all"
            )
        for _ in range(slabs):
            self._take_slab(index)
        ids = np.array(free[len(free) - count :][::-1], dtype=np.int32)
        del free[len(free) - count :]
        slab, slot = self._locate(ids)
        self._references[slab, slot] = 1
        np.add.at(self._live, slab, 1)
        return ids

    def retain(self, ids: Ids) -> None:
        """One more reference to each page."""
        slab, slot = self._locate(ids)
        if (self._references[slab, slot] <= 0).any():
            raise ValueError("a freed page was retained")
        np.add.at(self._references, (slab, slot), 1)

    def release(self, ids: Ids) -> None:
        """One reference less; pages without any are free from now on."""
        slab, slot = self._locate(ids)
        np.subtract.at(self._references, (slab, slot), 1)
        counts = self._references[slab, slot]
        if (counts < 0).any():
            np.add.at(self._references, (slab, slot), 1)
            raise ValueError("a page was released more often than retained")
        freed = np.unique(ids[counts == 0])
        slab, _ = self._locate(freed)
        np.subtract.at(self._live, slab, 1)
        for index in range(len(self.page_bytes)):
            # Descending, so that the lowest address is handed out first and slabs empty out.
            self._free[index].extend(freed[self._class_of_slab[slab] == index][::-1].tolist())
        if self.poison:
            for page, where in zip(freed.tolist(), slab.tolist(), strict=True):
                size = self.page_bytes[self._class_of_slab[where]]
                self.buffer[page * ALIGN : page * ALIGN + size] = 0xFF

    def references(self, ids: Ids) -> NDArray[np.int32]:
        """Current reference counts."""
        slab, slot = self._locate(ids)
        return self._references[slab, slot]

    def _locate(self, ids: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        start = ids.astype(np.int64) * ALIGN
        slab = start // self.slab_bytes
        sizes = np.asarray(self.page_bytes, dtype=np.int64)[self._class_of_slab[slab]]
        return slab, (start % self.slab_bytes) // sizes

    def _take_slab(self, index: int) -> None:
        slab = self._free_slabs.pop()
        size = self.page_bytes[index]
        self._class_of_slab[slab] = index
        first = slab * self.slab_bytes
        starts = range(first, first + self.slab_bytes // size * size, size)
        self._free[index][:0] = [start // ALIGN for start in reversed(starts)]

    def _reclaim(self, keep: int) -> None:
        """Hands slabs without live pages back to all classes."""
        empty = np.flatnonzero((self._live == 0) & (self._class_of_slab >= 0))
        empty = empty[self._class_of_slab[empty] != keep]
        if not empty.size:
            return
        gone = set(empty.tolist())
        for index in set(self._class_of_slab[empty].tolist()):
            rows = self.slab_bytes // ALIGN
            self._free[index] = [i for i in self._free[index] if i // rows not in gone]
        self._class_of_slab[empty] = -1
        self._free_slabs.extend(reversed(empty.tolist()))
