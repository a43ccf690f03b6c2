"""The environment variables that kvik reads; this is the only place that does.

KVIK_HOME    the folder for downloaded models (the user's cache folder otherwise)
KVIK_DEBUG   anything but empty or 0: errors that are bugs show their traceback
OMP_NUM_THREADS   at most so many threads; torch reads it too
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def home() -> Path:
    """The folder that kvik keeps its files in; it need not exist yet."""
    chosen = os.environ.get("KVIK_HOME")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("kvik"))


def omp_threads() -> int | None:
    """The threads that OMP_NUM_THREADS grants; None where it is unset or no count."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def debug() -> bool:
    """Whether an unexpected error should show where it happened."""
    return os.environ.get("KVIK_DEBUG", "") not in ("", "0")
