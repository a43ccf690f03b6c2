"""``kvik bench``: run a benchmark, print its table, leave its files."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from kvik.bench import trace as traces
from kvik.bench.shapes import SHAPES
from kvik.commands.progress import fetch_progress
from kvik.commands.results import out_folder, present, to_json
from kvik.errors import KvikError, ModelError, RecipeError
from kvik.evaluate.provenance import environment
from kvik.evaluate.text import read_text
from kvik.machine import parse_bytes, threads
from kvik.recipe import Plan, Recipe
from kvik.spec import load_spec
from kvik.spec.model import ModelSpec


@dataclass(frozen=True)
class WasteOptions:
    """The command line of ``kvik bench waste``; None is what was not given."""

    trace: str
    model: str
    memory: str
    recipe: str
    context: int | None
    requests: int | None
    rate: float | None
    seed: int | None
    step: float
    out: str | None
    as_json: bool


def report_waste(options: WasteOptions) -> None:
    """Measure, print, write; KvikError before anything runs where the input cannot be used."""
    folder = out_folder(options.out)
    recipe, memory = Recipe.parse(options.recipe), parse_bytes(options.memory)
    spec = _spec(options.model)
    context = options.context or spec.context
    arrivals = _trace(options, context)
    plan = _resolve(recipe, spec, options.recipe)
    from kvik.bench.picture import draw, make_table
    from kvik.bench.waste import Setting, document, measure

    setting = Setting(plan, memory, context, options.step)
    result = document(setting, arrivals, measure(setting, arrivals, _announce(options.as_json)))
    result["trace"] = {"name": options.trace, **result["trace"]}
    result["env"] = environment(threads())
    text = to_json(result)
    files: dict[Path, str] = {}
    if folder is not None:
        files = {
            folder / "waste.svg": draw(result),
            folder / "waste.json": text,
            folder / "trace.jsonl": traces.dump(arrivals),
        }
    present(text, files, lambda: make_table(result), as_json=options.as_json)


def _announce(quiet: bool) -> Callable[[str], None]:
    return lambda name: None if quiet else click.echo(f"{name} ...", err=True)


def _spec(model: str) -> ModelSpec:
    """One of the shapes, or the description of a real model, fetched if need be."""
    if model.lower() in SHAPES:
        return SHAPES[model.lower()]
    near = difflib.get_close_matches(model.lower(), SHAPES, n=1, cutoff=0.7)
    if near and "/" not in model and not Path(model).exists():
        raise ModelError(f"no model or shape {model!r}: did you mean {near[0]}?")
    from kvik.models import sources

    with fetch_progress(Console(stderr=True)) as report:
        return load_spec(sources.resolve(model, report))


def _resolve(recipe: Recipe, spec: ModelSpec, text: str) -> Plan:
    try:
        return recipe.resolve(spec)
    except RecipeError as error:
        raise RecipeError(*(f"{text!r}: {reason}" for reason in error.reasons)) from None


def _trace(options: WasteOptions, context: int) -> tuple[traces.Arrival, ...]:
    """The generated trace of that name, or the one in a file."""
    name = options.trace.lower()
    if name in traces.SHAPES:
        return traces.generate(
            traces.SHAPES[name],
            requests=300 if options.requests is None else options.requests,
            rate=4.0 if options.rate is None else options.rate,
            seed=options.seed or 0,
            context=context,
        )
    generated = (options.requests, options.rate, options.seed)
    if any(value is not None for value in generated):
        raise KvikError(
            f"--requests, --rate and --seed are for {' and '.join(traces.SHAPES)}; "
            f"{options.trace} is a file and says itself what arrives when"
        )
    if not options.trace:
        raise KvikError("--trace is empty: give sharegpt, alpaca or a file")
    return traces.parse(read_text(options.trace), options.trace)
