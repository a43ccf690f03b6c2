"""Memory of a pool: an anonymous map that is touched as it fills and can be given back."""

from __future__ import annotations

import mmap
from collections.abc import Iterable

import torch

from kvik.errors import CapacityError

# Reserves addresses, not memory: a pool may be larger than what will ever be used of it.
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class Memory:
    """``nbytes`` zero bytes as ``buffer`` (uint8), page-aligned; CapacityError when refused."""

    def __init__(self, nbytes: int) -> None:
        self._map: mmap.mmap | None = None
        if not nbytes:
            self.buffer = torch.empty(0, dtype=torch.uint8)
            return
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
            self._map = mmap.mmap(-1, nbytes, flags=flags)
        except (OSError, ValueError, OverflowError):
            raise CapacityError(
                f"cannot allocate {nbytes:,} bytes for the KV pool; "
                "ask for less context or a smaller recipe"
            ) from None
        self.buffer = torch.frombuffer(self._map, dtype=torch.uint8)

    def give_back(self, ranges: Iterable[tuple[int, int]]) -> int:
        """Returns the memory of byte ranges [start, stop) to the system; they read as zeros then.

        Only whole memory pages go; returns their bytes, 0 where the system cannot do it.
        """
        advice = getattr(mmap, "MADV_DONTNEED", None)
        if self._map is None or advice is None:
            return 0
        given, unit = 0, mmap.PAGESIZE
        for start, stop in ranges:
            first, last = -(-start // unit) * unit, stop // unit * unit
            if first < last:
                self._map.madvise(advice, first, last - first)
                given += last - first
        return given
