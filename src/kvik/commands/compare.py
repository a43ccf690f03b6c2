"""``kvik compare``: measure recipes, print the table, leave compare.json and report.html."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from kvik.commands.progress import fetch_progress
from kvik.commands.results import out_folder, present, to_json
from kvik.evaluate.compare import prepare, run
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
    folder = out_folder(out)
    errors = Console(stderr=True)
    with fetch_progress(errors) as report:
        prepared = prepare(
            model, recipes, context=context, text=text, offsets=offsets, fetching=report
        )
    for warning in prepared.warnings:
        click.echo(f"kvik: warning: {warning}", err=True)
    with Bars(errors) as bars:
        comparison = run(prepared, bars)
    document = to_json(comparison)
    files: dict[Path, str] = {}
    if folder is not None:
        files = {folder / "report.html": render(comparison), folder / "compare.json": document}
    present(document, files, lambda: make_table(comparison), as_json=as_json)
    failed = [r for r in comparison["results"] if "error" in r]
    for result in failed:
        click.echo(f"kvik: {result['recipe']} failed: {result['error']}", err=True)
    return 1 if failed else 0
