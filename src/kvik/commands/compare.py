"""``kvik compare``: measure recipes, print the table, leave the report, its pictures and data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from kvik.commands.progress import fetch_progress
from kvik.commands.results import out_folder, present, to_json
from kvik.evaluate.charts import draw
from kvik.evaluate.compare import prepare, run
from kvik.evaluate.files import write_atomic
from kvik.evaluate.report import render
from kvik.evaluate.sheets import sheets
from kvik.evaluate.table import Bars, make_table


def compare_recipes(
    model: str,
    recipes: Sequence[str],
    *,
    context: int,
    text: str | None,
    offsets: int,
    baseline: str | None,
    out: str | None,
    as_json: bool,
) -> int:
    """Returns 1 when a recipe failed, else 0; raises KvikError before anything runs."""
    folder = out_folder(out)
    errors = Console(stderr=True)
    with fetch_progress(errors) as report:
        prepared = prepare(
            model,
            recipes,
            context=context,
            text=text,
            offsets=offsets,
            baseline=baseline,
            fetching=report,
        )
    for warning in prepared.warnings:
        click.echo(f"kvik: warning: {warning}", err=True)
    with Bars(errors) as bars:
        comparison = run(prepared, bars)
    for warning in comparison.get("baseline", {}).get("warnings", []):
        click.echo(f"kvik: warning: {warning}", err=True)
    document = to_json(comparison)
    files: dict[Path, str] = {}
    notes = []
    if folder is not None:
        # First what the run was for, and from which everything else can be drawn again.
        write_atomic(folder / "compare.json", document)
        charts = draw(comparison)
        names = {"report.html": render(comparison, charts), "compare.json": document}
        files = {folder / name: text for name, text in (names | sheets(comparison)).items()}
        drawn = [chart.picture.write_png(folder) for chart in charts]
        notes = [f"{len(drawn)} pictures as PNG files in {folder}"] if drawn else []
    present(document, files, lambda: make_table(comparison), as_json=as_json, notes=notes)
    failed = [r for r in comparison["results"] if "error" in r]
    for result in failed:
        click.echo(f"kvik: {result['recipe']} failed: {result['error']}", err=True)
    return 1 if failed else 0
