"""The group that all verbs belong to."""

from __future__ import annotations

import click

from kvik import __version__
from kvik.cli.options import HelpGroup


@click.group(
    cls=HelpGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="kvik run smollm2-135m 'Why is the sky blue?' --kv int8\n"
    "kvik compare smollm2-135m --kv fp16 --kv int8 --kv sinks:4+window:252",
)
@click.version_option(__version__, message="kvik %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run and measure KV-cache recipes on the language model you already have."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
