"""``kvik compare``: measure recipes, print the table, leave the report, its pictures and data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from kvik.commands.progress import fetch_progress
from kvik.commands.results import deliver, out_folder, to_json
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
    facts = to_json(comparison)
    deliver(
        facts,
        lambda: make_table(comparison),
        lambda: () if folder is None else _leave(comparison, facts, folder),
        as_json=as_json,
    )
    failed = [r for r in comparison["results"] if "error" in r]
    for result in failed:
        click.echo(f"kvik: {result['recipe']} failed: {result['error']}", err=True)
    return 1 if failed else 0


def _leave(comparison: dict[str, Any], facts: str, folder: Path) -> Iterator[str]:
    """Writes every file, each whole, the data first; yields what was written."""
    write_atomic(folder / "compare.json", facts)
    charts = draw(comparison)
    texts = {"report.html": render(comparison, charts), **sheets(comparison)}
    yield str(folder / "compare.json")
    for name, text in texts.items():
        write_atomic(folder / name, text)
        yield str(folder / name)
    drawn = [chart.picture.write_png(folder) for chart in charts]
    if drawn:
        yield f"{folder / '*.png'}: {len(drawn)} pictures"
