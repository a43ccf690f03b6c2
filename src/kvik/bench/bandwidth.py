"""How fast this machine reads memory: the yardstick of everything that is bound by it."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvik.errors import CapacityError
from kvik.machine import available_memory, human_bytes

BUFFER = 512 << 20  # far beyond the last-level cache of the machines that we know
REPEATS = 12


@dataclass(frozen=True)
class Bandwidth:
    """What a plain read loop reaches with so many threads, in bytes a second.

    ``best`` of all passes is what the machine can do; ``median`` tells how busy it was.
    """

    threads: int
    best: float
    median: float

    def as_json(self) -> dict[str, Any]:
        """As a record has it, in GB/s (10^9 bytes)."""
        return {"threads": self.threads, "best": self.best / 1e9, "median": self.median / 1e9}


def read_bandwidth(threads: int, *, nbytes: int = BUFFER, repeats: int = REPEATS) -> Bandwidth:
    """Reads a buffer from end to end with every thread on a part of its own, several times.

    The loop is numpy's vectorized ``or`` over 64-bit words, which does nothing but load; numpy
    lets other threads run meanwhile. CapacityError where the buffer does not fit.
    """
    have = available_memory()
    if nbytes > have:
        raise CapacityError(
            f"measuring the bandwidth takes {human_bytes(nbytes)} and {human_bytes(have)} are "
            "available; close something"
        )
    words = np.ones(nbytes // 8, dtype=np.uint64)  # written, so that every page is there
    parts = np.array_split(words, threads)
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            start = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))
            seconds.append(time.perf_counter() - start)
    return Bandwidth(
        threads, words.nbytes / min(seconds), words.nbytes / statistics.median(seconds)
    )
