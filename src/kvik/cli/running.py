"""Models and what runs them: models, run, doctor."""

from __future__ import annotations

import json
from typing import Any

import click

from kvik.cli.options import JSON, MODEL, HelpGroup, Number
from kvik.cli.root import cli


@cli.group(
    cls=HelpGroup,
    invoke_without_command=True,
    epilog="kvik models\nkvik models get smollm2-135m",
)
@JSON
@click.pass_context
def models(ctx: click.Context, as_json: bool) -> None:
    """List the built-in models, or fetch one."""
    if ctx.invoked_subcommand is None:
        from kvik.commands.models import list_models

        list_models(as_json)


@models.command("get", epilog="kvik models get smollm2-135m gemma3-270m")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@JSON
def models_get(names: tuple[str, ...], as_json: bool) -> None:
    """Fetch built-in models into the cache folder, checked by SHA-256."""
    from kvik.commands.models import get_models

    get_models(names, as_json)


@cli.command(
    epilog="kvik run smollm2-135m 'Name three rivers.' --kv int8\n"
    "kvik run smollm2-135m --kv sinks:4+window:1020        (a chat)\n"
    "kvik run ./model.gguf --file question.txt --kv int8/int4 --json\n"
    "cat notes.txt | kvik run gemma3-270m --raw --max-new 32",
)
@MODEL
@click.argument("prompt", required=False)
@click.option("--kv", "recipe", default="fp16", show_default=True, help="Recipe of the cache.")
@click.option("--file", "file", type=click.Path(), help="Read the prompt from a file.")
@click.option("--system", help="System message of the chat.")
@click.option("--raw", is_flag=True, help="Complete plain text: no chat template.")
@click.option("--max-new", default=256, show_default=True, type=click.IntRange(1))
@click.option("--temperature", default=0.0, show_default=True, type=Number(0.0))
@click.option("--top-k", default=0, show_default=True, type=click.IntRange(0), help="0: all.")
@click.option("--top-p", default=1.0, show_default=True, type=Number(0.0, 1.0, min_open=True))
@click.option("--min-p", default=0.0, show_default=True, type=Number(0.0, 1.0))
@click.option(
    "--repetition-penalty",
    default=1.0,
    show_default=True,
    type=Number(0.0, min_open=True),
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**64 - 1))
@click.option("--stop", multiple=True, help="Stop before this text; may be repeated.")
@JSON
def run(model: str, prompt: str | None, as_json: bool, **options: Any) -> None:
    """Generate text, or chat, with a cache of your choice.

    The prompt comes from PROMPT, from --file or from standard input. Without one, at a terminal,
    a chat starts whose history stays in the cache. KV bytes and speed are told at the end.
    """
    from kvik.commands.answer import RunOptions
    from kvik.commands.run import run_model

    run_model(RunOptions(model=model, prompt=prompt, as_json=as_json, **options))


@cli.command(epilog="kvik doctor\nkvik doctor --json")
@JSON
def doctor(as_json: bool) -> None:
    """Say what this machine has and what kvik uses of it."""
    from kvik.doctor import examine, show

    facts = examine()
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        show(facts)
