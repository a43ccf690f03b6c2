"""``kvik eval``: run tasks through recipes, print the table, keep every cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from filelock import FileLock, Timeout
from rich.console import Console

from kvik.commands.progress import fetch_progress
from kvik.commands.results import deliver, out_folder, to_json
from kvik.errors import KvikError
from kvik.evaluate.files import write_atomic
from kvik.evaluate.outcome.charts import draw
from kvik.evaluate.outcome.report import render
from kvik.evaluate.outcome.sheets import sheets
from kvik.evaluate.outcome.table import CellBar, make_table, notes
from kvik.evaluate.sweep.store import Store
from kvik.evaluate.sweep.sweep import Question, prepare, run
from kvik.evaluate.tasks import Ask, Task


def list_the_tasks(as_json: bool) -> int:
    """Prints every task with what it is for."""
    tasks = {task.name: task.meaning for task in Task.registry.values()}
    if as_json:
        click.echo(to_json(tasks), nl=False)
    else:
        width = max(map(len, tasks))
        for name, meaning in tasks.items():
            click.echo(f"{name:<{width}}  {meaning}")
    return 0


def ask(
    model: str,
    out: str | None,
    *,
    as_json: bool,
    recipes: Sequence[str],
    tasks: Sequence[str],
    contexts: Sequence[int],
    samples: int | None,
    depths: Sequence[float],
    scored: int | None,
    **rest: Any,
) -> int:
    """The question in a user's words."""
    if not recipes:
        raise KvikError("no recipe was given: add --kv int8, or several of them")
    wanted = Ask(contexts or None, samples, sorted(set(depths)) or None, scored)
    question = Question(model, recipes, tasks or ("kl",), wanted, **rest)
    return evaluate(question, out, as_json=as_json)


def evaluate(question: Question, out: str | None, *, as_json: bool) -> int:
    """Returns 1 when a cell failed, else 0; raises KvikError before anything runs."""
    folder = out_folder(out)
    errors = Console(stderr=True)
    with fetch_progress(errors) as report:
        prepared = prepare(question, report)
    for warning in prepared.warnings:
        click.echo(f"kvik: warning: {warning}", err=True)
    with _locked(folder):
        store = Store(folder and folder / "results.jsonl", prepared.header)
        left = sum(len(job.cells()) for job in prepared.jobs(store))
        kept = len(store.done)
        if kept:
            click.echo(f"{kept} cells are there already, {left} to go", err=True)
        with CellBar(errors, left) as bar:
            result = run(prepared, store, bar.advance)
        text = to_json(result)
        deliver(
            text,
            lambda: make_table(result),
            lambda: () if folder is None else _leave(result, text, folder),
            as_json=as_json,
            notes=notes(result),
        )
    for cell in result["failed"]:
        where = ", ".join(f"{k} {v}" for k, v in cell["where"].items() if not isinstance(v, list))
        click.echo(f"kvik: {cell['task']} ({where}) {cell['recipe']}: {cell['error']}", err=True)
    return 1 if result["failed"] else 0


def _leave(result: dict[str, Any], text: str, folder: Path) -> Iterator[str]:
    """Writes every file, each whole, the data first; yields what was written."""
    drawn = draw(result)
    texts = {"eval.json": text, "eval.html": render(result, drawn), **sheets(result)}
    for name, content in texts.items():
        write_atomic(folder / name, content)
        yield str(folder / name)
    pictures = [chart.picture.write_png(folder) for task in drawn for chart in task.charts]
    if pictures:
        yield f"{folder / '*.png'}: {len(pictures)} pictures"


@contextmanager
def _locked(folder: Path | None) -> Iterator[None]:
    """One sweep a folder: two would write over each other."""
    if folder is None:
        yield
        return
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise KvikError(f"another kvik eval works in {folder}: give another --out") from None
    except OSError as error:
        raise KvikError(f"cannot write to {folder}: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.release()
