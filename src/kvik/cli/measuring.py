"""What a recipe loses, and what techniques rest on: compare, eval, inspect."""

from __future__ import annotations

from typing import Any

import click

from kvik.cli.options import JSON, MODEL, Number
from kvik.cli.root import cli


@cli.command(
    epilog="kvik compare smollm2-135m --kv fp16 --kv int8 --kv int4\n"
    "kvik compare smollm2-135m --kv window:256 --kv sinks:4+window:252 --out out/windows\n"
    "kvik compare gemma3-270m --kv int8/int4 --context 4096 --text book.txt --json\n"
    "kvik compare smollm2-135m --kv int4 --out out/new --baseline out/old/compare.json",
)
@MODEL
@click.option("--kv", "recipes", multiple=True, required=True, help="Recipe; may be repeated.")
@click.option("--context", default=2048, show_default=True, type=click.IntRange(1))
@click.option("--text", type=click.Path(), help="UTF-8 text to measure on, not the built-in one.")
@click.option("--offsets", default=1, show_default=True, type=click.IntRange(1, 100))
@click.option("--out", type=click.Path(), help="Folder for the report, its pictures and data.")
@click.option("--baseline", type=click.Path(), help="An earlier compare.json to tell changes from.")
@JSON
def compare(model: str, recipes: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Measure bytes, quality and speed of recipes side by side.

    Quality is the distance of the predictions from those of the full fp32 cache over 512 tokens
    after the context, at --offsets places of the text; each recipe runs in its own process. --out
    leaves report.html, compare.json, CSV files and the pictures as PNG files.
    """
    from kvik.commands.compare import compare_recipes

    return compare_recipes(model, recipes, as_json=as_json, **options)


@cli.command(
    "eval",
    epilog="kvik eval smollm2-135m --kv int8 --kv int4 --task kl --task needle\n"
    "kvik eval gemma3-270m --kv int4 --task needle --context 2000 --context 8000 --out out/needle\n"
    "kvik eval smollm2-135m --kv sinks:4+window:252 --task stream --ray --json\n"
    "kvik eval --tasks",
)
@click.argument("model", required=False)
@click.option("--kv", "recipes", multiple=True, help="Recipe; may be repeated.")
@click.option("--task", "tasks", multiple=True, help="Task; may be repeated.  [default: kl]")
@click.option("--tasks", "list_tasks", is_flag=True, help="List the tasks and end.")
@click.option(
    "--context",
    "contexts",
    multiple=True,
    type=click.IntRange(1, 2**24),
    help="Tokens; may be repeated.  [default: the task's]",
)
@click.option(
    "--samples", type=click.IntRange(1, 1000), help="Texts a cell.  [default: the task's]"
)
@click.option(
    "--depth",
    "depths",
    multiple=True,
    type=Number(0.0, 1.0),
    help="Where in the context; may be repeated.  [default: .1, .3, .5, .7, .9]",
)
@click.option(
    "--scored",
    type=click.IntRange(1, 2**20),
    help="Tokens that kl, length, stream and drift score.",
)
@click.option("--text", type=click.Path(), help="UTF-8 text to measure on, not the built-in one.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**62))
@click.option("--early", is_flag=True, help="State a question before the context too.")
@click.option("--workers", type=click.IntRange(1, 1024), help="Processes.  [default: by cores]")
@click.option(
    "--ray",
    is_flag=False,
    flag_value="here",
    metavar="[ADDRESS]",
    help="Work on a Ray cluster; without an address, on one that is started here.",
)
@click.option("--out", type=click.Path(), help="Folder for results.jsonl and eval.json.")
@JSON
def evaluate(model: str | None, out: str | None, as_json: bool, **options: Any) -> int:
    """Run tasks through recipes and say what each of them loses.

    The fp32 cache is measured first, and only what it can do is counted. With --out every finished
    cell is kept at once, and the same command goes on where it was stopped.
    """
    from kvik.commands.evaluate import ask, list_the_tasks

    if options.pop("list_tasks"):
        return list_the_tasks(as_json)
    if model is None:
        raise click.UsageError("MODEL is missing: give a name, a folder or a GGUF file")
    return ask(model, out, as_json=as_json, **options)


@cli.command(
    epilog="kvik inspect smollm2-135m --out out/inspect\n"
    "kvik inspect gemma3-270m --text book.txt --context 4096\n"
    "kvik inspect ./model.gguf --json"
)
@MODEL
@click.option("--text", type=click.Path(), help="UTF-8 text to read, not the built-in one.")
@click.option("--context", default=1024, show_default=True, type=click.IntRange(1))
@click.option("--out", type=click.Path(), help="Folder for the page, pictures, CSV and JSON.")
@JSON
def inspect(model: str, as_json: bool, **options: Any) -> None:
    """Show what KV-cache techniques rest on, for your model and your text.

    Attention sinks, how few tokens carry attention, what a window keeps, whether heavy hitters
    persist, outlier channels, ranges and 4-bit errors of K and V, rank, and how layers and heads
    differ: in sentences and pictures, for every layer and head.
    """
    from kvik.commands.inspect import inspect_model

    inspect_model(model, as_json=as_json, **options)
