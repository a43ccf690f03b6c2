"""The text that is measured on: the user's, or English that every Python carries."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from kvik.errors import KvikError

MAX_BYTES = 64 << 20
BUILT_IN_TEXT = "built-in (pydoc_data.topics)"


def library_text() -> str:
    """``pydoc_data.topics``, the language reference as prose: about 113,000 SmolLM2 tokens."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def chosen_text(path: str | Path | None) -> tuple[str, str]:
    """The name and the text that a user chose: of a file the last part of its path."""
    if path is None:
        return BUILT_IN_TEXT, library_text()
    return Path(path).name, read_text(path)


def read_text(path: str | Path) -> str:
    """The UTF-8 text of a file; raises KvikError in one line for anything else."""
    try:
        mode = os.stat(path).st_mode
        # A pipe may stand for a file, as in --file <(command); a device may have no end.
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISDIR(mode)):
            raise KvikError(f"{path} is not a regular file: give a file with text in it")
        with Path(path).open("rb") as file:
            data = read_bounded(file, str(path))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise KvikError(f"cannot read {path}: {reason or error}") from None
    text = decode_text(data, str(path))
    if not text.strip():
        raise KvikError(f"{path} is empty: give a file with text in it")
    return text


def read_bounded(stream: BinaryIO, what: str) -> bytes:
    """All bytes of ``stream``; KvikError as soon as there are more than ``MAX_BYTES``."""
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise KvikError(f"{what} is too large: at most {MAX_BYTES >> 20} MiB of text are read")
    return data


def decode_text(data: bytes, what: str) -> str:
    """UTF-8 with or without a byte order mark; KvikError names the first byte that is not."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KvikError(
            f"{what} is not UTF-8 text (byte {error.start}): convert it, e.g. with iconv"
        ) from None


def windows(ids: Sequence[int], length: int, count: int, *, what: str) -> list[list[int]]:
    """``count`` runs of ``length`` tokens, evenly spread over the text.

    Raises KvikError when the text has fewer than ``length`` tokens; ``what`` names it.
    """
    if len(ids) < length:
        raise KvikError(
            f"{what} has {len(ids):,} tokens, {length:,} are needed: "
            "give a longer text or a smaller --context"
        )
    room = len(ids) - length
    starts = [room * i // max(count, 1) for i in range(count)]
    return [list(ids[s : s + length]) for s in starts]
