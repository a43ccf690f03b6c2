"""The machine we run on: what doctor prints and a comparison records. Linux first."""

from __future__ import annotations

import os
import platform
import re
from decimal import Decimal
from functools import cache
from pathlib import Path

from kvik import env
from kvik.errors import KvikError

# In the order in which a kernel would prefer them.
_FLAGS = ("avx512_vnni", "avx512f", "avx_vnni", "avx2", "fma", "f16c", "i8mm", "asimddp", "asimd")

_UNITS = {"": 1, "b": 1} | {
    f"{letter}{unit}": base**power
    for power, letter in enumerate("kmgt", 1)
    for unit, base in (("", 1024), ("b", 1000), ("ib", 1024))
}
_SIZE = re.compile(rf"(\d{{1,15}}(?:\.\d{{1,9}})?) ?({'|'.join(_UNITS)})", re.ASCII | re.IGNORECASE)


@cache
def _cpuinfo() -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo; empty where there is none."""
    try:
        block = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def cpu_model() -> str:
    """The processor's name as it gives it."""
    info = _cpuinfo()
    return info.get("model name") or info.get("Model") or platform.processor() or "unknown"


def instruction_sets() -> list[str]:
    """The vector extensions that matter here and that the processor has."""
    info = _cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return [flag for flag in _FLAGS if flag in flags]


def affinity() -> int:
    """Cores that this process may be scheduled on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota() -> float | None:
    """Cores' worth of time that a container grants; None without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        folder = Path("/sys/fs/cgroup/cpu")
        limit = int((folder / "cpu.cfs_quota_us").read_text())
        return limit / int((folder / "cpu.cfs_period_us").read_text()) if limit > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def usable_cores() -> int:
    """Threads worth starting: affinity, cut to the cgroup's quota."""
    quota = cgroup_quota()
    cores = affinity()
    return max(1, min(cores, round(quota))) if quota is not None else cores


def granted_threads() -> int:
    """The usable cores, or fewer where OMP_NUM_THREADS says so."""
    usable = usable_cores()
    return min(env.omp_threads() or usable, usable)


def threads() -> int:
    """Threads that kvik computes with: the native library's, else the usable cores, or fewer
    where torch is set to fewer.

    Torch takes OMP_NUM_THREADS and the like into account; without torch we read it ourselves.
    """
    from kvik import native  # not at the top: it is built on this module

    if (lib := native.library()) is not None:
        return native.threads(lib)
    try:
        import torch
    except ImportError:
        return granted_threads()
    return min(torch.get_num_threads(), usable_cores())


def memory_limit() -> int:
    """Bytes of memory that this process may use: the machine's, or the cgroup's if less."""
    import psutil  # not at the top: what only reads sizes shall not wait for it

    total: int = psutil.virtual_memory().total
    limit, _ = _cgroup_memory()
    return total if limit is None else min(total, limit)


def available_memory() -> int:
    """Bytes that can be allocated now without swapping, within the cgroup's limit."""
    import psutil

    available: int = psutil.virtual_memory().available
    limit, used = _cgroup_memory()
    return available if limit is None else max(0, min(available, limit - used))


def _cgroup_memory() -> tuple[int | None, int]:
    """The cgroup's limit in bytes, or None, and what it uses now without the page cache."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        for line in (folder / "memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                used -= int(line.split()[1])
        return limit, max(used, 0)
    except (OSError, ValueError):
        return None, 0


def human_bytes(count: float) -> str:
    """A size as people read it: 1.5 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def parse_bytes(text: str) -> int:
    """A size as people write it, such as ``12GiB``, ``512 MiB``, ``2GB`` or ``4096``; whole bytes.

    KvikError for anything else.
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(Decimal(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if size < 1:
        raise KvikError(f"{text[:40]!r} is no size in bytes: write 512MiB, 12GiB or 4096")
    return size
