"""One real comparison of the tiny model, measured once for all that look at its figures."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from kvik.evaluate.compare import prepare, run
from kvik.evaluate.worker import Task, work

RECIPES = ("fp32", "int8", "window:64", "sinks:4+window:28", "fp16+sinks:4+window:28")


class Heard:
    """A progress that adds up."""

    def __init__(self) -> None:
        self.total = self.done = 0
        self.recipes: list[str] = []

    def begin(self, recipe: str, total: int) -> None:
        self.recipes.append(recipe)
        self.total += total

    def advance(self, stage: str, tokens: int) -> None:
        self.done += tokens

    def end(self, result: dict[str, Any]) -> None:
        pass


def here(task: Task, folder: Path, progress: Any) -> dict[str, Any]:
    """The worker's work in this process, to save the start of another one; JSON brings it back."""
    found: dict[str, Any] = json.loads(json.dumps(work(task, progress.advance)))
    return found


@pytest.fixture(scope="session")
def measured(tiny_model: Path) -> dict[str, Any]:
    heard = Heard()
    found = run(prepare(str(tiny_model), RECIPES, context=500), heard, launch=here, threads=1)
    assert heard.done == heard.total
    return found


@pytest.fixture
def comparison(measured: dict[str, Any]) -> dict[str, Any]:
    """A copy to change."""
    return copy.deepcopy(measured)
