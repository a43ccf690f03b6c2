"""Output files that are either complete or not there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from kvik.errors import KvikError


def check_writable(folder: Path) -> None:
    """Raise KvikError unless files can be made in ``folder``; leaves nothing behind.

    A folder that does not exist yet is judged by its nearest ancestor that does.
    """
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise KvikError(f"cannot write to {folder}: {place} is not a folder")
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise KvikError(f"cannot write to {folder}: {error.strerror or error}") from None


def write_atomic(path: Path, text: str) -> None:
    """Write UTF-8 text under another name beside ``path``, then rename it into place."""
    write_bytes_atomic(path, text.encode("utf-8"))


def write_bytes_atomic(path: Path, data: bytes) -> None:
    """The same for bytes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise KvikError(f"cannot write {path}: {error.strerror or error}") from None
