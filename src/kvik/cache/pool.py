"""PagePool: every byte of K and V of a device, in pages of a few sizes over equal slabs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvik.cache.ledger import Ledger
from kvik.cache.memory import Memory
from kvik.cache.slabs import Ids
from kvik.errors import CapacityError
from kvik.recipe.layout import ALIGN

__all__ = ["Ids", "PagePool", "PoolStats", "choose_slab"]

MAX_STRANDED = 0.02
MAX_BYTES = 2**31 * ALIGN  # what page ids of 32 bits can address


@dataclass(frozen=True)
class PoolStats:
    """Bytes of a pool, each counted once.

    ``used``: pages that anyone but the prefix cache references; ``cached``: pages that only the
    prefix cache references; ``stranded``: ends of slabs in use that hold no page of their size.
    """

    total: int
    used: int
    cached: int
    stranded: int

    @property
    def free(self) -> int:
        """Bytes that can become pages now or once their slab is empty."""
        return self.total - self.used - self.cached - self.stranded


def choose_slab(page_bytes: Sequence[int]) -> int:
    """The smallest slab that wastes at most 2 % of itself for every page size.

    A slab is a whole number of the largest pages; other sizes leave a remainder at its end. Plans
    that store nothing have no page sizes, and the smallest slab there is.
    """
    largest = max(page_bytes, default=ALIGN)
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
    References of the prefix cache (``cached=True``) are counted apart, so that :meth:`stats` and
    :meth:`can_alloc` know what giving up the prefix cache would free.
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
        self.poison = poison
        self._memory = Memory(slabs * self.slab_bytes)
        self.buffer = self._memory.buffer
        self._ledger = Ledger([s // ALIGN for s in sizes], slabs, self.slab_bytes // ALIGN)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole buffer."""
        return self.buffer.numel()

    def stats(self) -> PoolStats:
        """Bytes used, cached and stranded at this moment."""
        used = cached = stranded = 0
        for size, one in zip(self.page_bytes, self._ledger.classes, strict=True):
            used += one.used * size
            cached += (one.live - one.used) * size
            stranded += one.live_slabs * (self.slab_bytes % size)
        return PoolStats(self.nbytes, used, cached, stranded)

    def can_alloc(self, demand: Sequence[int], *, evict: bool = False) -> bool:
        """Whether ``demand[i]`` pages of each size ``page_bytes[i]`` can be had together now.

        With ``evict``: whether they could be had if the prefix cache gave up all its references.
        """
        return self._ledger.fits(demand, evict)

    def alloc(self, page_bytes: int, count: int) -> Ids:
        """``count`` new pages of one size, each with one reference. All or nothing."""
        index = self.page_bytes.index(page_bytes)
        room = self._ledger.room(index)
        if count > room:
            raise CapacityError(
                f"the KV pool is full: {count} pages of {page_bytes:,} bytes asked, "
                f"{room} free of {self.nbytes:,} bytes in all"
            )
        return self._ledger.take(index, count)

    def retain(self, ids: Ids, *, cached: bool = False) -> None:
        """One more reference to each page. ValueError, and no change, for a freed one."""
        self._ledger.retain(ids, cached)

    def release(self, ids: Ids, *, cached: bool = False) -> None:
        """One reference less; pages without any are free from now on.

        ValueError, and no change, when a page has fewer references of this kind.
        """
        rows = self._ledger.rows(ids) if self.poison else {}
        freed = self._ledger.release(ids, cached)
        if self.poison:
            for page in freed.tolist():
                self.buffer[page * ALIGN : (page + rows[page]) * ALIGN] = 0xFF

    def references(self, ids: Ids) -> NDArray[np.int32]:
        """Current reference counts, the prefix cache's included."""
        return self._ledger.counts(ids)

    def shared(self, page: int) -> bool:
        """Whether a page has more than one reference, so that nobody may write to it."""
        return self._ledger.count(page) > 1

    def any_shared(self, pages: Sequence[int]) -> bool:
        """Whether any of the pages has more than one reference."""
        return self._ledger.any_shared(pages)

    def give_back(self) -> int:
        """Returns the memory of free slabs to the system, and how many bytes that was.

        A poisoned pool keeps it, since the patterns in freed pages would be lost.
        """
        if self.poison:
            return 0
        gone = self._ledger.gone
        slabs = np.array(sorted(set(self._ledger.emptied) - gone), dtype=np.int64)
        given = self._memory.give_back(_runs(slabs, self.slab_bytes))
        gone.update(slabs.tolist())
        return given


def _runs(slabs: NDArray[np.int64], slab_bytes: int) -> Iterator[tuple[int, int]]:
    """Byte ranges [start, stop) of ascending slabs, neighbours joined."""
    breaks = np.flatnonzero(np.diff(slabs) > 1) + 1
    for run in np.split(slabs, breaks) if slabs.size else ():
        yield int(run[0]) * slab_bytes, (int(run[-1]) + 1) * slab_bytes
