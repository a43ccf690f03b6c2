"""The native library: found, checked and loaded once, or absent. Needs no torch.

``KVIK_NATIVE`` names a library file to use, or ``off`` for none; ``KVIK_ISA`` forces one of the
instruction sets that the machine can run.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path

from kvik import env, machine
from kvik.errors import KvikError

ABI = 3  # of csrc/include/kvik.h

_NAME = {"win32": "kvik_native.dll", "darwin": "libkvik_native.dylib"}


def candidates() -> list[Path]:
    """Where an installed library may lie: in the package, in every folder that it spans."""
    import kvik

    return [Path(p) / _NAME.get(sys.platform, "libkvik_native.so") for p in kvik.__path__]


@cache
def library() -> ctypes.CDLL | None:
    """The library, with its threads set to the granted cores; None when there is none.

    KvikError when the file is there but cannot be used, or KVIK_ISA asks for what the machine
    does not have.
    """
    named = env.native()
    if named == "off":
        return None
    found = Path(named) if named else next((p for p in candidates() if p.is_file()), None)
    if found is None:
        return None
    try:
        lib = ctypes.CDLL(os.fspath(found))
        abi = lib.kvik_abi()
    except (OSError, AttributeError) as error:
        raise KvikError(f"{found.name} cannot be loaded ({error}); set KVIK_NATIVE=off") from error
    if abi != ABI:
        raise KvikError(
            f"{found.name} has interface {abi} and this kvik needs {ABI}: install kvik again"
        )
    _declare(lib)
    set_threads(lib, machine.granted_threads())
    if (isa := env.isa()) is not None:
        select(lib, isa)
    return lib


def _declare(lib: ctypes.CDLL) -> None:
    text, number = ctypes.c_char_p, ctypes.c_int32
    lib.kvik_variant.restype = lib.kvik_usable_variant.restype = text
    lib.kvik_usable_variant.argtypes = (number,)
    lib.kvik_select_variant.argtypes = (text,)
    lib.kvik_set_threads.argtypes = (number,)
    lib.kvik_set_threads.restype = None


def path(lib: ctypes.CDLL) -> Path:
    """The file that the library came from."""
    return Path(lib._name)


def threads(lib: ctypes.CDLL) -> int:
    """Threads that a kernel may use, the calling one included."""
    count: int = lib.kvik_threads()
    return count


def set_threads(lib: ctypes.CDLL, count: int) -> None:
    """Use so many threads from now on, at least one; results do not depend on it."""
    lib.kvik_set_threads(count)


def variants(lib: ctypes.CDLL) -> list[str]:
    """Names of the instruction sets that this machine can run, best first."""
    found: list[str] = []
    while (name := lib.kvik_usable_variant(len(found))) is not None:
        found.append(name.decode())
    return found


def select(lib: ctypes.CDLL, variant: str) -> None:
    """Use that instruction set from now on; KvikError when this machine cannot."""
    if lib.kvik_select_variant(variant.encode()):
        raise KvikError(
            f"this machine cannot run the {variant!r} kernels; it runs {', '.join(variants(lib))}"
        )


def variant(lib: ctypes.CDLL) -> str:
    """The instruction set in use."""
    name: bytes = lib.kvik_variant()
    return name.decode()
