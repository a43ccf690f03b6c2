"""Memory for weights that every step reads from end to end."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

CHUNK = 64 << 20
LARGE_PAGE = 2 << 20
LINE = 64


class Shelf:
    """Places tensors side by side in chunks of large memory pages, where the system has them.

    Small pages of a whole model are more than a processor can look up at once: reading it from end
    to end then waits for their addresses. A chunk lives as long as a tensor in it; what is not yet
    taken of one holds no memory, but for a part of a large page.
    """

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)

    def take(self, nbytes: int) -> Tensor:
        """uint8 [nbytes], not initialized, aligned to cache lines."""
        advice = getattr(mmap, "MADV_HUGEPAGE", None)
        if advice is None:
            return torch.empty(nbytes, dtype=torch.uint8)
        size = -(-nbytes // LINE) * LINE
        if size > len(self._chunk):
            try:
                self._chunk = _chunk(max(size, CHUNK), advice)
            except OSError:  # no such pages, or no room for a whole chunk
                return torch.empty(nbytes, dtype=torch.uint8)
        taken, self._chunk = self._chunk[:nbytes], self._chunk[size:]
        return taken


def _chunk(size: int, advice: int) -> Tensor:
    memory = mmap.mmap(-1, size + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % LARGE_PAGE
    memory.madvise(advice, start, size)
    return whole[start : start + size]
