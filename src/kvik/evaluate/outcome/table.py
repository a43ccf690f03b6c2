"""An evaluation in the terminal: progress by cells, one table, what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from kvik.evaluate.figures import fixed_text, kl_text
from kvik.evaluate.tasks import Task
from kvik.machine import human_bytes


class CellBar:
    """A bar on standard error; a line a cell where it is no terminal."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("cells", total=total)
        self._done, self._total = 0, total

    def __enter__(self) -> CellBar:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def advance(self, record: Mapping[str, Any]) -> None:
        """One cell more."""
        self._done += 1
        what = f"{record['task']} {record['where']['context']:,} {record['recipe']}"
        self._bar.update(self._task, advance=1, description=what)
        if not self._console.is_terminal:
            state = "failed" if "error" in record else f"{record['seconds']:.1f} s"
            self._console.print(Text(f"{self._done}/{self._total} {what}: {state}"))


HEADS = ("task", "context", "recipe", "KV bytes", "quality", "95 % interval", "more", "counted")


def make_table(result: Mapping[str, Any]) -> Table:
    """One row for each task, context and recipe."""
    table = Table(title=Text(f"{result['model']}, {result['text']}"), title_justify="left")
    for number, head in enumerate(HEADS):
        table.add_column(head, no_wrap=number < 3, justify="left" if number < 3 else "right")
    last = None
    for row in result["rows"]:
        at = (row["task"], row["context"])
        if last is not None and at != last:
            table.add_section()
        texts = cells(row)
        shown = ("", "", *texts[2:]) if at == last else texts
        table.add_row(*(Text(text) for text in shown))
        last = at
    return table


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row as it is written under ``HEADS``."""
    kind = Task.registry[row["task"]].kind
    figures = _recalled(row) if kind == "recall" else _streamed(row)
    first = (row["task"], f"{row['context']:,}", row["recipe"])
    return (*first, human_bytes(row["kv_bytes"]), *figures)


def _streamed(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    kl = row["kl"]
    times = fixed_text(row["ppl_ratio"], 3)
    more = f"top-1 {row['top1']:.3f}, p99 {kl_text(row['kl_p99'])}, ppl x {times}"
    if "slope" in row:
        more += f", slope {row['slope']['value']:+.2g} per 1,000 steps"
    interval = "" if kl["low"] is None else f"{kl_text(kl['low'])} to {kl_text(kl['high'])}"
    return f"KL {kl_text(kl['value'])}", interval, more, f"{row['tokens']:,} tokens"


def _recalled(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    kept = row["retention"]
    counted = f"{row['cells_hit']} and {row['cells_scored']} of {row['cells']} cells"
    hits = f"hits {_number(row['hits'])}/{row['asked']}" if row["asked"] else "hits not counted"
    if kept is None:
        return "not counted", "", hits, counted
    interval = "" if kept["low"] is None else f"{kept['low']:.3f} to {kept['high']:.3f}"
    return f"retention {kept['value']:.3f}", interval, f"{hits}, log-p {row['logp']:.2f}", counted


def _number(value: float) -> str:
    return f"{value:.0f}" if value == round(value) else f"{value:.1f}"


def notes(result: Mapping[str, Any]) -> list[str]:
    """What a reader must know of the figures."""
    kinds = {Task.registry[row["task"]].kind for row in result["rows"]}
    found = []
    if "stream" in kinds:
        found.append("KL(fp32 || recipe) in nats per token; intervals over blocks of 32 tokens.")
    if "recall" in kinds:
        found.append(
            "Retention of an answer's log-probability: 1 as with fp32, 0 as without the context. "
            "Counted are the cells where fp32 answers (hits: in 90 % of samples; retention: 3 nats "
            "above the floor)."
        )
    noise = {row["task"]: row["noise"] for row in result["rows"] if row["noise"] is not None}
    if noise:
        worst = ", ".join(f"{task} {kl_text(value)}" for task, value in noise.items())
        found.append(
            f"Noise floor, fp32 cut into other steps at the shortest context, in nats: {worst}."
        )
    if result["early"]:
        found.append("The question stands before the context too (--early).")
    return found
