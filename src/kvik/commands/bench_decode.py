"""``kvik bench decode`` and ``kvik bench prefill``: time per token, its table and its files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console

from kvik.commands.progress import fetch_progress
from kvik.commands.results import out_folder, present, to_json
from kvik.evaluate.compare import resolved
from kvik.evaluate.provenance import environment
from kvik.machine import threads
from kvik.recipe import Recipe

RECIPES = ("fp16", "int8", "int4")
CONTEXTS = (512, 2000, 4000, 8000)
ROOM = 128
BATCHES = {"decode": (1, 8, 16), "prefill": (1,)}


@dataclass(frozen=True)
class DecodeOptions:
    """The command line of both verbs; None is what was not given."""

    bench: Literal["decode", "prefill"]
    model: str
    recipes: tuple[str, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    rounds: int
    seed: int
    out: str | None
    as_json: bool
    steps: int = 8
    chunk: int = 512


def report_decode(options: DecodeOptions) -> None:
    """Measure, print, write; KvikError before anything runs where the input cannot be used."""
    folder = out_folder(options.out)
    resolved(options.recipes or RECIPES, None)
    from kvik.bench.decode import Setting, measure_decode, measure_prefill, records
    from kvik.bench.decode_picture import draw, make_table
    from kvik.models import load_model, sources

    with fetch_progress(Console(stderr=True)) as report:
        sources.resolve(options.model, report)
    model = load_model(options.model)
    setting = Setting(
        model=model,
        recipes=tuple(map(Recipe.parse, resolved(options.recipes or RECIPES, model.spec))),
        contexts=tuple(dict.fromkeys(options.contexts or _usual(model.spec.context))),
        batches=tuple(dict.fromkeys(options.batches or BATCHES[options.bench])),
        rounds=options.rounds,
        steps=options.steps,
        chunk=options.chunk,
        seed=options.seed,
    )
    measure = measure_decode if options.bench == "decode" else measure_prefill
    result: dict[str, Any] = measure(setting, _announce(options.as_json))
    result["env"] = environment(threads())
    files: dict[Path, str] = {}
    if folder is not None:
        lines = "".join(json.dumps(record) + "\n" for record in records(result))
        files = {
            folder / f"{options.bench}.svg": draw(result),
            folder / f"{options.bench}.jsonl": lines,
        }
    text, notes = to_json(result), result["notes"]
    present(text, files, lambda: make_table(result), as_json=options.as_json, notes=notes)


def _usual(context: int) -> tuple[int, ...]:
    """The usual contexts that such a model reads, with room for what follows; half of it if none.

    A model of 8,192 tokens thus has all of them.
    """
    return tuple(c for c in CONTEXTS if c + ROOM <= context) or (max(1, context // 2),)


def _announce(quiet: bool) -> Any:
    return lambda text: None if quiet else click.echo(f"{text} ...", err=True)
