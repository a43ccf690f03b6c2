"""``kvik models``: what the built-in models are and whether they are here; fetch them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvik.commands.progress import fetch_progress
from kvik.machine import human_bytes
from kvik.models import sources


def list_models(as_json: bool) -> None:
    """Print the built-in models."""
    present = set(sources.present())
    rows = [_facts(model, model.name in present) for model in sources.BUILTIN.values()]
    if as_json:
        click.echo(json.dumps({"folder": str(sources.folder()), "models": rows}, indent=2))
        return
    table = Table("name", "model", "size", "licence", "here", box=None, pad_edge=False)
    for row in rows:
        size, here = human_bytes(row["bytes"]), "yes" if row["present"] else "no"
        table.add_row(*map(Text, (row["name"], row["title"], size, row["license"], here)))
    Console().print(table)
    click.echo(
        "\nA .gguf file, a folder with config.json and a Hugging Face repo id work as MODEL too."
    )


def get_models(names: Sequence[str], as_json: bool) -> None:
    """Fetch built-in models and print where they lie."""
    # All names are looked at before the first download.
    for name in names:
        if name.lower() not in sources.BUILTIN:
            sources.get(name)
    with fetch_progress(Console(stderr=True)) as report:
        paths = {name: str(sources.get(name, report)) for name in names}
    if as_json:
        click.echo(json.dumps(paths, indent=2))
    else:
        for path in paths.values():
            click.echo(path)


def _facts(model: sources.BuiltIn, present: bool) -> dict[str, Any]:
    return {
        "name": model.name,
        "title": model.title,
        "bytes": model.size,
        "license": model.license,
        "license_url": model.license_url,
        "present": present,
        "path": str(sources.folder() / model.file),
    }
