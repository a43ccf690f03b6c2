"""The file around a saved sequence: a versioned header, and seals over all that came before them.

    bytes   what
    8       "kvik-seq"
    4       version of the format, little-endian
    4       size of the header
    ...     the header, a JSON object
    32      seal: SHA-256 of everything so far
    ...     sections, each ending in a seal over everything so far

The part up to the first seal keeps this form in every version, so that a version can be believed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from kvik.errors import KvikError

MAGIC = b"kvik-seq"
VERSION = 2
PREFIX = struct.Struct("<8sII")
SEAL = 32
MAX_HEADER = 1 << 16
PIECE = 1 << 20  # bytes in memory at a time while only checksums matter
AGAIN = "delete it and save the sequence again"


class Writer:
    """Writes one container piece by piece into a file object."""

    def __init__(self, file: BinaryIO, header: dict[str, Any]) -> None:
        """KvikError when the header is longer than any reader accepts."""
        self._file, self._hasher = file, hashlib.sha256()
        text = json.dumps(header, sort_keys=True).encode()
        if len(text) > MAX_HEADER:
            raise KvikError("the recipe or domain is too long to be saved; use a shorter one")
        self.write(PREFIX.pack(MAGIC, VERSION, len(text)) + text)
        self.seal()

    def write(self, data: bytes | NDArray[Any]) -> None:
        """Appends bytes, or the bytes of an array."""
        if isinstance(data, np.ndarray):
            raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
        else:
            raw = memoryview(data)
        self._hasher.update(raw)
        self._file.write(raw)

    def seal(self) -> None:
        """Ends a section."""
        self.write(self._hasher.digest())


class Reader:
    """Reads a container; every fault is a KvikError that says what to do.

    Never reads more than the file has, and gives nothing of a header before its seal is checked.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hasher = file, hashlib.sha256()
        self.left = file.seek(0, io.SEEK_END)
        file.seek(0)
        if self.left < PREFIX.size:
            raise KvikError("this is no saved kvik sequence: it is too short; name another file")
        magic, version, size = PREFIX.unpack(self.read(PREFIX.size))
        if magic != MAGIC:
            raise KvikError("this is no saved kvik sequence; name another file")
        if size > MAX_HEADER:
            raise KvikError(f"the saved sequence is damaged: its header has no end; {AGAIN}")
        text = self.read(size)
        self.check_seal()
        if version != VERSION:
            other, what = ("newer", "update kvik") if version > VERSION else ("older", AGAIN)
            raise KvikError(
                f"the saved sequence has format {version} of {other} versions of kvik and this one "
                f"reads format {VERSION}; {what}"
            )
        try:
            header = json.loads(text)
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict):
            raise KvikError(f"the saved sequence has a header that makes no sense; {AGAIN}")
        self.header: dict[str, Any] = header

    def read(self, nbytes: int) -> bytes:
        """The next bytes, checked against what the file has before memory is asked for."""
        return self.array("<u1", nbytes).tobytes()

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        """The next ``count`` numbers."""
        self.expect(np.dtype(dtype).itemsize * count)
        found = np.empty(count, dtype=dtype)
        target = found.view(np.uint8).data
        if self._file.readinto(target) != found.nbytes:  # type: ignore[attr-defined]
            raise KvikError(f"the saved sequence is cut short; {AGAIN}")
        self.left -= found.nbytes
        self._hasher.update(target)
        return found

    def expect(self, nbytes: int) -> None:
        """KvikError when the file does not have so many more bytes."""
        if nbytes > self.left:
            raise KvikError(f"the saved sequence is cut short; {AGAIN}")

    def look_ahead(self, nbytes: int) -> None:
        """Checks the next bytes and the seal behind them, and comes back to where it was."""
        place, left, hasher = self._file.tell(), self.left, self._hasher.copy()
        for start in range(0, nbytes, PIECE):
            self.array("<u1", min(PIECE, nbytes - start))
        self.check_seal()
        self._file.seek(place)
        self.left, self._hasher = left, hasher

    def check_seal(self) -> None:
        """Ends a section; KvikError when it is not what was written."""
        seal = self._hasher.digest()
        if self.read(SEAL) != seal:
            raise KvikError(f"the saved sequence is damaged: its checksum does not match; {AGAIN}")


def _checked(path: str | os.PathLike[str]) -> Path:
    """Where a path leads; KvikError for what is none."""
    try:
        return Path(os.path.realpath(path))
    except (ValueError, TypeError):
        raise KvikError(f"{path!r} is no path of a file; name one") from None


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file that replaces ``path`` once it is written to the end and on the disk.

    Until then, and after any error or interrupt, ``path`` is as it was. Readable by its owner
    alone: the file holds what was said. KvikError when the disk refuses.
    """
    target = _checked(path)
    if target.exists() and not target.is_file():
        raise KvikError(f"{path}: cannot be written (it is no regular file); name another file")
    try:
        handle, name = tempfile.mkstemp(".part", f".{target.name}.", target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
        _sync(target.parent)
    except OSError as error:
        raise KvikError(
            f"{path}: cannot be written ({error.strerror}); free space, or name another file"
        ) from error


def _sync(folder: Path) -> None:
    """Makes the new name last; not every system can open a folder."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """The file at ``path``; KvikError when it is not there or no file, and with every fault."""
    try:
        if not _checked(path).is_file():
            raise KvikError(f"{path}: no such file")
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise KvikError(f"{path}: cannot be read ({error.strerror})") from error
