"""Time and memory under load: bench decode, prefill, serving, waste."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from kvik.cli.options import JSON, HelpGroup, Number
from kvik.cli.root import cli


@cli.group(
    cls=HelpGroup, invoke_without_command=True, epilog="kvik bench waste\nkvik bench waste --help"
)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure time per token, and what sharing one pool of pages is worth."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@bench.command(
    epilog="kvik bench waste --out out/waste\n"
    "kvik bench waste --trace alpaca --kv int8 --memory 4GiB --rate 20\n"
    "kvik bench waste --model ./config.json --context 4096 --trace requests.jsonl --json"
)
@click.option(
    "--trace", default="sharegpt", show_default=True, help="sharegpt, alpaca, or a JSON Lines file."
)
@click.option("--model", default="opt-13b", show_default=True, help="A shape, or MODEL as in run.")
@click.option("--memory", default="12GiB", show_default=True, help="KV bytes that each may use.")
@click.option("--kv", "recipe", default="fp16", show_default=True, help="Recipe of the cache.")
@click.option("--context", type=click.IntRange(1), help="Longest request.  [default: the model's]")
@click.option("--requests", type=click.IntRange(1, 100_000), help="Of the trace.  [default: 300]")
@click.option(
    "--rate",
    type=Number(0.0, 1e6, min_open=True),
    help="Requests that arrive in a second.  [default: 4]",
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Of the trace.  [default: 0]")
@click.option(
    "--step",
    default=0.04,
    show_default=True,
    type=Number(0.0, 1e3, min_open=True),
    help="Seconds that a step takes.",
)
@click.option("--out", type=click.Path(), help="Folder for waste.json, waste.svg and trace.jsonl.")
@JSON
def waste(as_json: bool, **options: Any) -> None:
    """Say where the KV bytes go while a trace of requests runs.

    The trace runs on kvik's pages and on three systems that reserve a contiguous block for each
    request (the longest possible, to the next power of two, exact), all at the same KV budget.
    Shapes that need no model: opt-13b, llama-3-8b, llama-3-70b.
    """
    from kvik.commands.bench import WasteOptions, report_waste

    report_waste(WasteOptions(as_json=as_json, **options))


@bench.command(
    epilog="kvik bench serving --out out/serving --peer transformers\n"
    "kvik bench serving smollm2-135m --kv fp16 --kv int4 --rate 1 --rate 4 --requests 20\n"
    "kvik bench serving ./model.gguf --trace requests.jsonl --scale 1 --memory 256MiB --json"
)
@click.argument("model", default="smollm2-135m")
@click.option(
    "--kv",
    "recipes",
    multiple=True,
    help="Recipe; may be repeated.  [default: fp32, fp16 and int8, each with page:8]",
)
@click.option("--memory", default="4MiB", show_default=True, help="KV bytes that each may use.")
@click.option(
    "--rate",
    "rates",
    multiple=True,
    type=Number(0.0, 1e6, min_open=True),
    help="Requests that arrive in a second; may be repeated.  [default: 0.5, 1, 2]",
)
@click.option("--requests", type=click.IntRange(1, 100_000), help="At each rate.  [default: 12]")
@click.option(
    "--trace", default="sharegpt", show_default=True, help="sharegpt, alpaca, or a JSON Lines file."
)
@click.option(
    "--scale",
    default=0.04,
    show_default=True,
    type=Number(0.001, 1000.0),
    help="Lengths of the trace are multiplied by this.",
)
@click.option(
    "--peer",
    type=click.Choice(["transformers"]),
    help="Also measure its generate on padded batches at the same KV bytes.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**64 - 1))
@click.option(
    "--step-tokens",
    default=64,
    show_default=True,
    type=click.IntRange(1),
    help="Most tokens that the engine computes in a step.",
)
@click.option(
    "--out", type=click.Path(), help="Folder for serving.json, serving.svg and trace.jsonl."
)
@JSON
def serving(as_json: bool, **options: Any) -> int:
    """Measure throughput and latency against offered load at a fixed KV budget.

    Requests arrive at their own times (Poisson), whether or not the server keeps up. The same
    requests go to the engine with each recipe, and to the peer, at each rate. A file's rhythm is
    stretched to the rates.
    """
    from kvik.commands.bench_serving import ServingOptions, report_serving

    return report_serving(ServingOptions(as_json=as_json, **options))


def _timing(command: Callable[..., None]) -> Callable[..., None]:
    """The options that ``bench decode`` and ``bench prefill`` have in common."""
    for option in (
        JSON,
        click.option("--out", type=click.Path(), help="Folder for the .jsonl and .svg files."),
        click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**62)),
        click.option(
            "--rounds",
            default=3,
            show_default=True,
            type=click.IntRange(1, 1000),
            help="Turns of every recipe.",
        ),
        click.option(
            "--batch",
            "batches",
            multiple=True,
            type=click.IntRange(1, 1024),
            help="Sequences at once; may be repeated.",
        ),
        click.option(
            "--context",
            "contexts",
            multiple=True,
            type=click.IntRange(1),
            help="Tokens of each; may be repeated.  [default: 512, 2000, 4000, 8000]",
        ),
        click.option(
            "--kv",
            "recipes",
            multiple=True,
            help="Recipe; may be repeated.  [default: fp16, int8, int4]",
        ),
        click.argument("model", default="smollm2-135m"),
    ):
        command = option(command)
    return command


@bench.command(
    epilog="kvik bench decode --out out/decode\n"
    "kvik bench decode ./model.gguf --kv int8 --kv int4 --context 8000 --batch 1 --json"
)
@_timing
@click.option(
    "--steps", default=8, show_default=True, type=click.IntRange(1, 10_000), help="Of a turn."
)
def decode(**options: Any) -> None:
    """Measure the time of a decode step against context and batch, beside its floor.

    The floor is the packed weights plus all K and V held, over the bandwidth of a plain read loop
    on this machine. Caches are filled with random K and V; no prompt is computed. Batches are 1, 8
    and 16 unless given.
    """
    from kvik.commands.bench_decode import DecodeOptions, report_decode

    report_decode(DecodeOptions("decode", **options))


@bench.command(
    epilog="kvik bench prefill --out out/prefill\n"
    "kvik bench prefill smollm2-135m --kv int8 --context 4096 --rounds 1 --json"
)
@_timing
@click.option(
    "--chunk",
    default=512,
    show_default=True,
    type=click.IntRange(1, 65_536),
    help="Tokens of a step, shared by the sequences.",
)
def prefill(**options: Any) -> None:
    """Measure how long computing whole prompts takes, against length and batch (1 unless given)."""
    from kvik.commands.bench_decode import DecodeOptions, report_decode

    report_decode(DecodeOptions("prefill", **options))
