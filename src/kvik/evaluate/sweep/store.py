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
from kvik.evaluate.tasks import Task, Unit

SCHEMA = "kvik eval 1"
# What must be the same for cells to be comparable, and how a refusal names it; the rest of the
# header is told, not compared. SCHEMA changes with what a task asks.
FIXED = {
    "schema": "another version of kvik",
    "model_identity": "another model (or of texts beyond what its short RoPE factors are for)",
    "text_sha256": "another text",
    "tokens_sha256": "another tokenizer",
    "seed": "another --seed",
    "early": "another choice of --early",
    "template": "another prompt template",  # which --early changes too
}
Key = tuple[str, str, bool]


def key(record: Mapping[str, Any]) -> Key:
    """What a cell is known by."""
    return record["unit"], record["recipe"], record["repeat"]


class Store:
    """Records on disk (``path`` None: in memory alone). ``done`` holds those with values."""

    def __init__(self, path: Path | None, header: Mapping[str, Any]) -> None:
        self._path, self.done = path, dict[Key, Record]()
        self.failed: dict[Key, Record] = {}
        self._answered: dict[str, Any] = {}
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
                    if number == 0 and not _begun(line):
                        raise KvikError(f"{path} is no file of kvik eval: give another --out")
                    if file.read(1):
                        raise _damaged(path, number)
                    break
                if number == 0:
                    _same_question(path, found, header)
                elif not _sound(found) or not self._alike(found):
                    raise _damaged(path, number)
                elif "values" in found:
                    self.done[key(found)] = found
                whole += len(line)
        return whole

    def _alike(self, found: Mapping[str, Any]) -> bool:
        """Whether a record answers what those of its unit before it answer."""
        if "values" not in found:
            return True
        answered = Task.registry[found["task"]].alike(found["values"])
        return bool(self._answered.setdefault(found["unit"], answered) == answered)

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


def _damaged(path: Path, number: int) -> KvikError:
    """What to do about a line, counted from 0; without the first one nobody knows the question."""
    if number == 0:
        return KvikError(
            f"{path}, line 1 is damaged: it says what was asked, and nothing says it again; give "
            "another --out"
        )
    return KvikError(
        f"{path}, line {number + 1} is damaged: remove that line, or give another --out"
    )


def _parsed(line: bytes) -> dict[str, Any] | None:
    """None for a line that is not whole."""
    if not line.endswith(b"\n"):
        return None
    try:
        found = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and infinities, which no record holds


def _begun(line: bytes) -> bool:
    """Whether a first line may be our header, cut off."""
    ours = json.dumps({"schema": SCHEMA})[:-1].encode()
    return ours.startswith(line) or line.startswith(ours)


def _sound(found: Mapping[str, Any]) -> bool:
    """Whether a record has what the summary reads."""
    where, values = found.get("where"), found.get("values")
    if not isinstance(where, dict) or not isinstance(found.get("repeat"), bool):
        return False
    if not all(isinstance(found.get(name), str) for name in ("task", "unit", "recipe")):
        return False
    if values is None:
        return isinstance(found.get("error"), str)
    task = Task.registry.get(found["task"])
    if task is None or Unit(found["task"], where).key != found["unit"]:
        return False
    if not isinstance(values, dict) or type(values.get("kv_bytes")) is not int:
        return False
    if not 0 <= values["kv_bytes"] < 1 << 63:
        return False
    floorless = "" if found["repeat"] else found["recipe"]  # a repetition has no floor
    return task.sound(where, values, floorless)


def _same_question(path: Path, found: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    for name, what in FIXED.items():
        if found.get(name) != header[name]:
            raise KvikError(f"{path} holds results of {what}: give another --out")
