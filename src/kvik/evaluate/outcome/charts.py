"""The pictures of an evaluation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvik.evaluate.charts import Chart, slug
from kvik.evaluate.pictures import (
    Axis,
    Point,
    Series,
    draw_heat,
    draw_lines,
    draw_scatter,
    nats,
    size,
)
from kvik.evaluate.statistics import BLOCK
from kvik.evaluate.tasks import REFERENCE, Task
from kvik.evaluate.tasks.recall import Recall

Row = Mapping[str, Any]
# KL below this is drawn at it: no picture tells such recipes apart.
LEAST_KL = 1e-6


@dataclass(frozen=True)
class TaskCharts:
    """A task and its pictures."""

    task: str
    charts: tuple[Chart, ...]


def draw(result: Mapping[str, Any]) -> list[TaskCharts]:
    """Pictures of every task that has rows."""
    by_task: dict[str, list[Row]] = defaultdict(list)
    for row in result["rows"]:
        by_task[row["task"]].append(row)
    found = []
    for name, rows in by_task.items():
        how = _recalled if Task.registry[name].kind == "recall" else _streamed
        found.append(TaskCharts(name, tuple(how(name, rows))))
    return found


def _streamed(task: str, rows: Sequence[Row]) -> Iterator[Chart]:
    recipes = _recipes(rows)
    contexts = sorted({row["context"] for row in rows})
    longest = [row for row in rows if row["context"] == contexts[-1]]
    points = [
        Point(row["recipe"], row["kv_bytes"], row["kl"]["value"], recipes.index(row["recipe"]))
        for row in longest
        if row["recipe"] != REFERENCE
    ]
    if points:
        yield Chart(
            draw_scatter(
                f"{task}-bytes",
                f"{task}: KL against bytes",
                f"KL to the dense cache and KV bytes of every recipe at {contexts[-1]:,} tokens.",
                points,
                Axis("KV bytes", "log2", size),
                Axis("KL in nats", "log", nats, floor=LEAST_KL),
            ),
            f"At a context of {contexts[-1]:,} tokens; left and below is better. The line joins "
            "what no other recipe beats in both.",
        )
    if len(contexts) > 1:
        yield _curves(task, rows, recipes)
    if task == "drift":
        yield _drift(longest, recipes)


def _curves(task: str, rows: Sequence[Row], recipes: Sequence[str]) -> Chart:
    series = _by_context(rows, recipes, "kl")
    return Chart(
        draw_lines(
            f"{task}-context",
            f"{task}: KL against context",
            "KL to the dense cache of every recipe against the length of the context.",
            [one for one in series if one.label != REFERENCE],
            Axis("tokens of context", "log2"),
            Axis("KL in nats", "log", nats, floor=LEAST_KL),
        ),
        "Mean over the tokens after a context of that length.",
    )


def _drift(rows: Sequence[Row], recipes: Sequence[str]) -> Chart:
    series = [
        Series(
            row["recipe"],
            [(i + 0.5) * BLOCK for i in range(len(row["curve"]))],
            row["curve"],
            recipes.index(row["recipe"]),
        )
        for row in rows
        if row["recipe"] != REFERENCE
    ]
    return Chart(
        draw_lines(
            "drift-steps",
            "drift: KL by step",
            "KL to the dense cache against the step of a text that the dense cache wrote.",
            series,
            Axis("step"),
            Axis("KL in nats", "log", nats, floor=LEAST_KL),
        ),
        f"Means of {BLOCK} steps. A line that rises is an error that adds up.",
    )


def _recalled(task: str, rows: Sequence[Row]) -> Iterator[Chart]:
    recipes, by_rule = _recipes(rows), Task.registry[task]
    assert isinstance(by_rule, Recall)
    if by_rule.axis == "distance":
        yield _distances(task, rows, recipes)
        return
    if by_rule.axis == "sample":
        yield _riddles(task, rows, recipes)
        return
    for index, recipe in enumerate(recipes):
        yield _map(task, index, recipe, [r for r in rows if r["recipe"] == recipe])


def _map(task: str, index: int, recipe: str, rows: Sequence[Row]) -> Chart:
    contexts = sorted({row["context"] for row in rows})
    places = sorted({cell["at"] for row in rows for cell in row["map"]})
    found = {(c["at"], row["context"]): c for row in rows for c in row["map"]}
    values: list[list[float | None]] = []
    texts: list[list[str]] = []
    for at in places:
        cells = [found.get((at, context)) for context in contexts]
        values.append([None if c is None else c["retention"] for c in cells])
        texts.append([_cell_text(c) for c in cells])
    hits, asked = sum(row["hits"] for row in rows), sum(row["asked"] for row in rows)
    counted = sum(row["cells_scored"] for row in rows)
    return Chart(
        draw_heat(
            f"{task}-{index}-{slug(recipe)}",
            f"{task}: {recipe}",
            f"What {recipe} still tells of something hidden in a text: rows are places in the "
            "text, columns its lengths.",
            [f"{at:.0%}" for at in places],
            [f"{context:,}" for context in contexts],
            values,
            texts=texts,
            row_label="depth",
            column_label="tokens",
            low=0.0,
            high=1.0,
            key="share of the log-probability that is left",
        ),
        f"Hits: {hits:g} of {asked} that the dense cache finds. {counted} of "
        f"{len(places) * len(contexts)} cells are counted.",
    )


def _cell_text(cell: Row | None) -> str:
    if cell is None or cell["retention"] is None:
        return ""
    mark = "" if cell["hits"] is None else "✓" if cell["hits"] > 0.5 else "✗"
    return f"{mark} {max(-9.99, cell['retention']):.2f}".strip()


def _distances(task: str, rows: Sequence[Row], recipes: Sequence[str]) -> Chart:
    longest = max(row["context"] for row in rows)
    series = [
        Series(
            row["recipe"],
            [cell["at"] for cell in row["map"]],
            [cell["retention"] for cell in row["map"]],
            recipes.index(row["recipe"]),
        )
        for row in rows
        if row["context"] == longest
    ]
    return Chart(
        draw_lines(
            f"{task}-back",
            f"{task}: recall by distance",
            "How much of the log-probability is left, against how many tokens back it stood.",
            series,
            Axis("tokens back", "log2"),
            Axis("share that is left", least=0.0, most=1.0),
        ),
        f"In a context of {longest:,} tokens. A window of W tokens in every layer sees W tokens "
        "back directly; beyond, only what its layers handed on.",
    )


def _riddles(task: str, rows: Sequence[Row], recipes: Sequence[str]) -> Chart:
    series = _by_context(rows, recipes, "retention")
    return Chart(
        draw_lines(
            f"{task}-context",
            f"{task}: recall against context",
            "How much of the answers' log-probability is left, against the context.",
            series,
            Axis("tokens of context", "log2"),
            Axis("share that is left", least=0.0, most=1.0),
        ),
        f"{Task.registry[task].meaning}. Contexts where the dense cache is near the floor are "
        "gaps.",
    )


def _by_context(rows: Sequence[Row], recipes: Sequence[str], figure: str) -> list[Series]:
    """A line a recipe: its estimate of ``figure`` at every context, a gap where there is none."""
    series = []
    for index, recipe in enumerate(recipes):
        mine = sorted((r for r in rows if r["recipe"] == recipe), key=lambda r: r["context"])
        values = [None if row[figure] is None else row[figure]["value"] for row in mine]
        series.append(Series(recipe, [row["context"] for row in mine], values, index))
    return series


def _recipes(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["recipe"] for row in rows))
