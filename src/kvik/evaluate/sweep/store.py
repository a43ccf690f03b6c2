"""A sweep's records in one JSON Lines file: kept as they come, found again after any end.

The first line says what was asked; a file of another question is refused. A last line that a crash
or a full disk cut off is dropped, everything before it stays.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvik.errors import KvikError
from kvik.evaluate.sweep.cells import Record

SCHEMA = "kvik eval 1"
# What must be the same for cells to be comparable; the rest of the header is told, not compared.
FIXED = ("schema", "model_identity", "text_sha256", "seed", "early")
Key = tuple[str, str, bool]


def key(record: Mapping[str, Any]) -> Key:
    """What a cell is known by."""
    return record["unit"], record["recipe"], record["repeat"]


class Store:
    """Records on disk (``path`` None: in memory alone). ``done`` holds those with values."""

    def __init__(self, path: Path | None, header: Mapping[str, Any]) -> None:
        self._path, self.done = path, dict[Key, Record]()
        self.failed: dict[Key, Record] = {}
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            whole = self._read(path, header)
            with path.open("ab") as file:
                file.truncate(whole)
        except OSError as error:
            raise KvikError(f"cannot write {path}: {error.strerror or error}") from None
        if not whole:
            self._append(dict(header))

    def _read(self, path: Path, header: Mapping[str, Any]) -> int:
        """Takes in what is there; returns how many bytes of it are whole lines."""
        if not path.exists():
            return 0
        whole = 0
        with path.open("rb") as file:
            for number, line in enumerate(file):
                found = _parsed(line)
                if found is None:
                    if file.read(1):
                        raise KvikError(
                            f"{path}, line {number + 1} is damaged: remove that line, or give "
                            "another --out"
                        )
                    break
                if number == 0:
                    _same_question(path, found, header)
                elif "values" in found:
                    self.done[key(found)] = found
                whole += len(line)
        return whole

    def add(self, record: Record) -> None:
        """Keeps a record; KvikError when the disk refuses, which loses no earlier one."""
        if self._path is not None:
            self._append(record)
        if "values" in record:
            self.done[key(record)] = record
        else:
            self.failed[key(record)] = record

    def _append(self, line: Mapping[str, Any]) -> None:
        assert self._path is not None
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        try:
            # Unbuffered: what a full disk refused must not be written again on closing.
            with self._path.open("ab", buffering=0) as file:
                start = file.tell()
                try:
                    while data:
                        data = data[file.write(data) :]
                    os.fsync(file.fileno())
                except OSError:
                    os.truncate(self._path, start)
                    raise
        except OSError as error:
            raise KvikError(
                f"cannot write {self._path}: {error.strerror or error}; what was measured before "
                "is kept, and the same command goes on from there"
            ) from None


def _parsed(line: bytes) -> dict[str, Any] | None:
    """None for a line that is not whole."""
    if not line.endswith(b"\n"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _same_question(path: Path, found: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    for name in FIXED:
        if found.get(name) != header[name]:
            what = name.replace("_", " ")
            raise KvikError(f"{path} holds results of another {what}: give another --out")
