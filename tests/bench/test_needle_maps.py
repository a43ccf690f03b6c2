"""The needle maps in the docs: what the committed sweeps say, of both models and eight recipes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def maps() -> ModuleType:
    sys.path.insert(0, str(BENCH))
    try:
        return importlib.import_module("needle_maps")
    finally:
        sys.path.remove(str(BENCH))


def test_the_tables_in_the_docs_are_what_the_records_say(maps: ModuleType) -> None:
    block = importlib.import_module("page_block")
    page = block.PAGE.read_text()
    assert maps.placed(page, maps.render(block.recorded(maps.RESULTS))) == page


def test_both_models_are_mapped_to_the_length_they_should(maps: ModuleType) -> None:
    """At least eight recipes beside the dense cache, every cell of every map."""
    block = importlib.import_module("page_block")
    found = {h["model"]: cells for h, cells in maps.split(block.recorded(maps.RESULTS))}
    assert list(found) == ["smollm2-135m", "gemma3-270m"]
    for cells, longest in zip(found.values(), (8000, 16000), strict=True):
        measured = {(c["recipe"], c["where"]["context"]) for c in cells if "values" in c}
        contexts = {context for _, context in measured}
        recipes = {recipe for recipe, _ in measured}
        assert max(contexts) == longest
        assert len(contexts) >= 3
        assert len(recipes) >= 9
        assert measured == {(recipe, context) for recipe in recipes for context in contexts}


def record(recipe: str, logp: float, hit: float, **floor: float) -> dict[str, Any]:
    items = [{"at": 0.5, "logp": logp, "hit": hit, **floor}]
    where = {"context": 500, "sample": 0, "depths": [0.5]}
    cell = {"task": "needle", "unit": "a", "recipe": recipe, "repeat": False, "where": where}
    return {**cell, "values": {"items": items, "kv_bytes": 1000}}


def test_a_lost_answer_shows(maps: ModuleType) -> None:
    env = dict.fromkeys(("cpu", "cores", "kvik", "commit", "torch", "command"), "x")
    header = {"schema": "kvik eval 1", "model": "m", "env": {**env, "instruction_sets": []}}
    cells = [record("fp32", -1.0, 1.0, floor=-11.0), record("int4", -6.0, 0.0)]
    text = maps.render([header, *cells])
    assert "| `fp32` | 1 of 1; 1.00 (1) | 1,000 |" in text
    assert "| `int4` | 0 of 1; 0.50 (1) | 1,000 |" in text
    assert "| 500 | 0.5 | -1.00 | given | yes |" in text
