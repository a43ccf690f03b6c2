"""``kvik inspect``: what techniques rest on, for one model and text, as sentences and pictures."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvik.commands.progress import fetch_progress
from kvik.commands.results import out_folder, present, to_json
from kvik.evaluate.files import write_bytes_atomic
from kvik.evaluate.inspect.run import Prepared, prepare, run
from kvik.evaluate.inspect.view import Document


def inspect_model(
    model: str, *, text: str | None, context: int, out: str | None, as_json: bool
) -> None:
    """Raises KvikError before anything runs where the input is bad."""
    folder = out_folder(out)
    errors = Console(stderr=True)
    with fetch_progress(errors) as report:
        prepared = prepare(model, context=context, text=text, fetching=report)
    for warning in prepared.warnings:
        click.echo(f"kvik: warning: {warning}", err=True)
    document = _observed(prepared, errors)
    facts = to_json(document)
    files = {} if folder is None else _files(document, folder, facts)
    from kvik.evaluate.inspect.table import make_table

    notes = [f"{x['title']}: {x['figure']} {x['means']}" for x in document["findings"]]
    present(facts, files, lambda: make_table(document), as_json=as_json, notes=notes)


def _observed(prepared: Prepared, errors: Console) -> Document:
    """The figures, with a bar at a terminal and a line elsewhere."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
    if not errors.is_terminal:
        click.echo(f"{prepared.model}: {prepared.layers} layers ...", err=True)
    with bar:
        task = bar.add_task("layers", total=prepared.layers)
        return run(prepared, lambda layer: bar.advance(task))


def _files(document: Document, folder: Path, facts: str) -> dict[Path, str]:
    """Text of the files of --out; the pictures are written, once all of it is made."""
    from kvik.evaluate.inspect.drawings import draw
    from kvik.evaluate.inspect.page import render
    from kvik.evaluate.inspect.sheets import sheets

    pictures = draw(document)
    files = {folder / "inspect.html": render(document, pictures)}
    files |= {folder / name: content for name, content in sheets(document).items()}
    images = {p.name: p.png() for drawn in pictures.values() for p in drawn}
    for name, data in images.items():
        write_bytes_atomic(folder / f"{name}.png", data)
    # Last, so that it is there only when all the others are.
    return files | {folder / "inspect.json": facts}
