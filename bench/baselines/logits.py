"""A file of logits, float32 ``[T, vocab]``, written a few rows at a time; numpy alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


class Out:
    """Rows are appended until the file is full."""

    def __init__(self, path: str | Path, rows: int, vocab: int) -> None:
        self._file = np.lib.format.open_memmap(path, "w+", np.float32, (rows, vocab))
        self.at = 0

    def add(self, rows: Any) -> None:
        """Appends ``[n, vocab]``."""
        stop = self.at + len(rows)
        if stop > len(self._file):
            raise ValueError(f"{stop} rows for a file of {len(self._file)}")
        self._file[self.at : stop] = rows
        self.at = stop

    def close(self) -> None:
        """Flushes; ValueError when rows are missing."""
        if self.at != len(self._file):
            raise ValueError(f"{self.at} rows of {len(self._file)}")
        self._file.flush()
