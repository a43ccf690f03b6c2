"""The environment variables that kvik reads; this is the only place that does.

KVIK_HOME    the folder for downloaded models (the user's cache folder otherwise)
KVIK_DEBUG   anything but empty or 0: errors that are bugs show their traceback
KVIK_NATIVE  a file to use as the native library, or "off" for the reference operations alone
KVIK_ISA     the instruction set whose kernels are used, instead of the best that the machine has
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


def native() -> str | None:
    """The native library to use, ``off`` for none; None to look for the installed one."""
    return os.environ.get("KVIK_NATIVE") or None


def isa() -> str | None:
    """The instruction set to use; None for the best."""
    return os.environ.get("KVIK_ISA") or None
