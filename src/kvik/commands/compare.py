"""``kvik compare``: measure recipes, print the table, leave compare.json and report.html."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from kvik.commands.progress import fetch_progress
from kvik.errors import KvikError
from kvik.evaluate.compare import prepare, run
from kvik.evaluate.files import check_writable, write_atomic
from kvik.evaluate.report import render
from kvik.evaluate.table import Bars, make_table


def compare_recipes(
    model: str,
    recipes: Sequence[str],
    *,
    context: int,
    text: str | None,
    offsets: int,
    out: str | None,
    as_json: bool,
) -> int:
    """Returns 1 when a recipe failed, else 0; raises KvikError before anything runs."""
    if out == "":
        raise KvikError("--out is empty: give the name of a folder, or leave it out")
    folder = None if out is None else Path(out)
    if folder is not None:
        check_writable(folder)
    errors = Console(stderr=True)
    with fetch_progress(errors) as report:
        prepared = prepare(
            model, recipes, context=context, text=text, offsets=offsets, fetching=report
        )
    for warning in prepared.warnings:
        click.echo(f"kvik: warning: {warning}", err=True)
    with Bars(errors) as bars:
        comparison = run(prepared, bars)
    document = json.dumps(comparison, indent=2, allow_nan=False) + "\n"
    if folder is not None:
        write_atomic(folder / "compare.json", document)
        write_atomic(folder / "report.html", render(comparison))
    if as_json:
        click.echo(document, nl=False)
    else:
        # Piped, the table must not be folded to 80 columns.
        console = Console() if Console().is_terminal else Console(width=160)
        console.print(make_table(comparison))
        if folder is not None:
            click.echo(f"{folder / 'report.html'}\n{folder / 'compare.json'}")
    failed = [r for r in comparison["results"] if "error" in r]
    for result in failed:
        click.echo(f"kvik: {result['recipe']} failed: {result['error']}", err=True)
    return 1 if failed else 0
