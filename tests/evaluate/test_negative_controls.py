"""Every task sees a cache that loses pages, on a real model; an intact one it lets pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.evaluate.faults import FAULTY, Faulty

from kvik.evaluate.outcome.summary import summarize
from kvik.evaluate.sweep.cells import Job, work
from kvik.evaluate.tasks import REFERENCE, Ask, Material, Task, Unit, find
from kvik.evaluate.text import library_text
from kvik.models import Model, load_model

NEVER = 10**6
CONTEXT = {"words": 450, "middle": 400}


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("smollm2-135m")


def measured(model: Model, task: str, every: int) -> tuple[list[float], dict[str, float]]:
    """By how much each log-probability (or KL) moved, and the task's row."""
    ask = Ask([CONTEXT.get(task, 320)], 1, [0.3, 0.7], 64)
    (unit,) = find(task).units(ask)
    if task == "stream":
        unit = Unit(task, {**unit.where, "context": 128, "scored": 64})
    material = Material(model.tokenizer, library_text()[:60_000])
    with torch.no_grad():
        job = Job(unit, (REFERENCE, FAULTY), repeat=False)
        cells = list(work(Faulty(model, material, every=every), job))
    full, ours = (cell["values"] for cell in cells)
    rows = [row for row in summarize(cells, [FAULTY]) if row["recipe"] == FAULTY]
    if find(task).kind == "stream":
        return ours["kl"], rows[0]
    pairs = zip(ours["items"], full["items"], strict=True)
    return [a["logp"] - b["logp"] for a, b in pairs], rows[0]


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("task", list(Task.registry))
def test_lost_pages_are_seen(model: Model, task: str) -> None:
    """Half of the pages for what is hidden, a quarter of them for predictions."""
    if find(task).kind == "stream":
        kl, row = measured(model, task, every=4)
        assert np.mean(kl) > 0.2
        assert row["kl"]["value"] == pytest.approx(np.mean(kl))
    else:
        moved, row = measured(model, task, every=2)
        assert min(moved) < -1.0, "one answer at least is a nat less likely"
        if task != "tracking":  # which this model cannot do with any cache
            assert row["cells_scored"] > 0
            assert row["retention"]["value"] < 0.97


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("task", ["kl", "needle", "drift"])
def test_an_intact_cache_is_let_pass(model: Model, task: str) -> None:
    moved, row = measured(model, task, every=NEVER)
    assert np.abs(moved).max() < 1e-3
    if task == "needle":
        assert row["retention"]["value"] == pytest.approx(1.0, abs=1e-3)
        assert (row["hits"], row["asked"]) == (2, 2)
