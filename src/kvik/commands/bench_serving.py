"""``kvik bench serving``: an open-loop load test, its table and its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from kvik.bench import trace as traces
from kvik.bench.padded import check_installed
from kvik.bench.serving_load import shrink
from kvik.commands.progress import fetch_progress
from kvik.commands.results import out_folder, present, to_json
from kvik.errors import KvikError, RecipeError
from kvik.evaluate.compare import resolved
from kvik.evaluate.provenance import environment, version_of
from kvik.evaluate.table import Bars
from kvik.evaluate.text import library_text, read_text
from kvik.machine import parse_bytes, threads
from kvik.recipe import Recipe

if TYPE_CHECKING:
    from kvik.bench.serving import Setting
    from kvik.models import Model

# Pages of 8 tokens: lengths that are scaled down would not fill the usual 32.
RECIPES = ("fp32+page:8", "fp16+page:8", "int8+page:8")
RATES = (0.5, 1.0, 2.0)
REQUESTS = 12


@dataclass(frozen=True)
class ServingOptions:
    """The command line of ``kvik bench serving``; None is what was not given."""

    model: str
    recipes: tuple[str, ...]
    memory: str
    rates: tuple[float, ...]
    requests: int | None
    trace: str
    scale: float
    peer: str | None
    seed: int
    step_tokens: int
    out: str | None
    as_json: bool


def report_serving(options: ServingOptions) -> int:
    """Measure, print, write; 1 when a request failed, else 0.

    KvikError before anything runs where the input cannot be used.
    """
    folder = out_folder(options.out)
    if options.peer is not None:
        check_installed(gguf=False)
    from kvik.models import load_model, sources

    resolved(options.recipes or RECIPES, None)
    memory, rates = parse_bytes(options.memory), tuple(dict.fromkeys(options.rates or RATES))
    trace, errors = _trace(options), Console(stderr=True)
    with fetch_progress(errors) as report:
        path = sources.resolve(options.model, report)
    if options.peer is not None:
        check_installed(gguf=path.suffix == ".gguf")
    model = load_model(options.model)
    setting = _setting(options, model, memory, rates, trace)
    from kvik.bench.serving import document, measure
    from kvik.bench.serving_picture import draw, make_table

    with Bars(errors) as bars:
        runs = measure(setting, bars)
    result = document(setting, runs)
    result["trace"] = {"name": options.trace, "scale": options.scale, **result["trace"]}
    result["env"] = environment(threads()) | {"transformers": version_of("transformers")}
    text = to_json(result)
    files: dict[Path, str] = {}
    if folder is not None:
        files = {
            folder / "serving.svg": draw(result),
            folder / "serving.json": text,
            folder / "trace.jsonl": traces.dump(setting.trace),
        }
    notes = result["notes"]
    present(text, files, lambda: make_table(result), as_json=options.as_json, notes=notes)
    failed = sum(run["failed"] for run in runs)
    if failed:
        click.echo(f"kvik: {failed} request{'s' * (failed > 1)} failed", err=True)
    return 1 if failed else 0


def _setting(
    options: ServingOptions,
    model: Model,
    memory: int,
    rates: tuple[float, ...],
    trace: tuple[traces.Arrival, ...],
) -> Setting:
    """What to measure; RecipeError for a recipe that does not fit the model or caches nothing."""
    from kvik.bench.serving import Setting

    recipes = tuple(map(Recipe.parse, resolved(options.recipes or RECIPES, model.spec)))
    empty = [str(recipe) for recipe in recipes if not recipe.resolve(model.spec).groups]
    if empty:
        raise RecipeError(f"{', '.join(empty)} caches no tokens: there is no budget to keep to")
    with_head, plain = model.tokenizer.encode("."), model.tokenizer.encode(".", bos=False)
    return Setting(
        model=model,
        recipes=recipes,
        trace=trace,
        rates=rates,
        memory=memory,
        step_tokens=options.step_tokens,
        text=tuple(model.tokenizer.encode(library_text(), bos=False, special=False)),
        head=tuple(with_head[: len(with_head) - len(plain)]),
        peer=options.peer is not None,
        seed=options.seed,
    )


def _trace(options: ServingOptions) -> tuple[traces.Arrival, ...]:
    """The trace of that name or in that file, its lengths scaled."""
    shape = traces.SHAPES.get(options.trace.lower())
    if shape is not None:
        count = options.requests or REQUESTS
        trace = traces.generate(
            shape, requests=count, rate=1.0, context=shape.longest, seed=options.seed
        )
    elif options.trace:
        trace = traces.parse(read_text(options.trace), options.trace)[: options.requests]
    else:
        raise KvikError("--trace is empty: give sharegpt, alpaca or a file")
    return shrink(trace, options.scale)
