"""``kvik export``: how to start another engine with a recipe."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from kvik.commands.plan import context_of, describe
from kvik.commands.results import to_json
from kvik.export import export
from kvik.plan.hardware import find_device
from kvik.plan.ranks import Parallel
from kvik.plan.request import Request


def export_recipe(
    model: str,
    *,
    kv: str,
    engine: str,
    context: int | None,
    batch: int,
    parallel: tuple[int, int, int],
    device: str | None,
    inflight: int | None,
    as_json: bool,
) -> None:
    """Print the command, the files it reads and what the engine cannot do."""
    spec = describe(model)
    there = None if device is None else find_device(device)
    request = Request(
        spec,
        kv,
        context_of(spec, context),
        batch,
        engine.casefold(),
        Parallel(*parallel),
        inflight,
        None if there is None else there.memory_bytes,
        None if there is None else there.name,
    )
    found = export(request, model)
    if as_json:
        document: dict[str, Any] = {"model": model, "recipe": kv, **asdict(found)}
        click.echo(to_json(document), nl=False)
        return
    for name, content in found.files.items():
        click.echo(f"# {name}\n{content}")
    click.echo(found.command)
    title = request.engine_rules.title
    for reason in found.cannot:
        click.echo(f"* {title} cannot: {reason}", err=True)
    for note in found.notes:
        click.echo(f"* {note}", err=True)
