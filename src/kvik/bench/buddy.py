"""A buddy allocator: contiguous blocks whose sizes are powers of two (Knuth, TAOCP 1, 2.5)."""

from __future__ import annotations

import heapq


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least ``size`` (1 or more)."""
    return 1 << (size - 1).bit_length()


class Buddy:
    """Blocks in ``size`` slots, lowest address first.

    A block of 2^k slots starts at a multiple of 2^k. Where ``size`` is no power of two the arena
    is several trees side by side, one for each binary digit, the largest first. A freed block
    merges with its buddy, the other half of the block it came from, as long as that is free.
    """

    def __init__(self, size: int) -> None:
        self.size = self.free = size
        self._blocks: dict[int, int] = {}  # handed out: address -> slots
        # Free blocks by size: the set is the truth, the heap orders it and may hold stale entries.
        self._free: dict[int, set[int]] = {}
        self._order: dict[int, list[int]] = {}
        start = 0
        for digit in reversed(range(size.bit_length())):
            self._free[1 << digit], self._order[1 << digit] = set(), []
            if size >> digit & 1:
                self._put(start, 1 << digit)
                start += 1 << digit

    @property
    def largest(self) -> int:
        """Slots of the largest free block; 0 where nothing is free."""
        return max((size for size, free in self._free.items() if free), default=0)

    def block(self, address: int) -> int:
        """Slots of the block handed out at ``address``."""
        return self._blocks[address]

    def alloc(self, slots: int) -> int | None:
        """The address of a block of at least ``slots`` (1 or more); None where none is left."""
        wanted = power_of_two(slots)
        size = wanted
        while size in self._free and not self._free[size]:
            size *= 2
        if size not in self._free:
            return None
        address = self._take(size)
        while size > wanted:
            size //= 2
            self._put(address + size, size)
        self._blocks[address] = size
        self.free -= size
        return address

    def release(self, address: int) -> None:
        """Frees a block; KeyError where none was handed out at ``address``."""
        size = self._blocks.pop(address)
        self.free += size
        while (buddy := address ^ size) in self._free.get(size, ()):
            self._free[size].remove(buddy)
            address, size = min(address, buddy), 2 * size
        self._put(address, size)

    def _put(self, address: int, size: int) -> None:
        self._free[size].add(address)
        heapq.heappush(self._order[size], address)

    def _take(self, size: int) -> int:
        while True:
            address = heapq.heappop(self._order[size])
            if address in self._free[size]:
                self._free[size].remove(address)
                return address
