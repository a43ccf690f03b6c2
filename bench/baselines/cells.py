"""Finished cells of a run, one file each: a run that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from noise import Sample


class Cells:
    """Scored tokens of one cache on one text, by everything that they depend on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, key: dict[str, Any]) -> Path:
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{digest[:24]}.npz"

    def find(self, key: dict[str, Any]) -> tuple[Sample, dict[str, Any]] | None:
        """The tokens and what was said of them; None where the cell has not been run."""
        path = self._path(key)
        if not path.exists():
            return None
        with np.load(path) as file:
            found = Sample(**{name: file[name] for name in Sample.__dataclass_fields__})
            return found, json.loads(str(file["facts"]))

    def keep(self, key: dict[str, Any], sample: Sample, facts: dict[str, Any]) -> None:
        """Writes a cell, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(key)
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.savez(file, facts=json.dumps(facts), **vars(sample))
        os.replace(part, path)
