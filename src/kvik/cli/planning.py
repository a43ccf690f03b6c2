"""Bytes before anything runs, and commands of other engines: plan, export."""

from __future__ import annotations

from typing import Any

import click

from kvik.cli.options import JSON, MODEL
from kvik.cli.root import cli


@cli.command(
    epilog="kvik plan llama-3-8b --context 32768\n"
    "kvik plan gemma-3-27b --kv int8/int4 --device h100 --batch 8 --explain\n"
    "kvik plan ./config.json --kv int4+sinks:4+window:2044 --memory 24GiB --stack\n"
    "kvik plan gpt-oss-120b --engine vllm --available 5.38GiB --json"
)
@MODEL
@click.option("--kv", default="fp16", show_default=True, help="Recipe, or a type of the engine.")
@click.option("--context", type=click.IntRange(1, 2**31), help="Tokens.  [default: the model's]")
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1, 10**6))
@click.option("--device", help="What it shall run on, such as h100 or 'rtx 4090'.")
@click.option("--memory", help="Or how much memory a device has.")
@click.option("--available", help="Or how much of it is there for KV, as engines' logs say.")
@click.option("--weights", default="as-is", show_default=True, help="fp16, fp8, int4, q4_k, ...")
@click.option(
    "--tp",
    default=1,
    show_default=True,
    type=click.IntRange(1, 4096),
    help="Tensor parallel devices.",
)
@click.option(
    "--cp", default=1, show_default=True, type=click.IntRange(1, 4096), help="Context parallel."
)
@click.option(
    "--pp", default=1, show_default=True, type=click.IntRange(1, 4096), help="Pipeline stages."
)
@click.option(
    "--engine",
    default="kvik",
    show_default=True,
    help="kvik, vllm, sglang, llamacpp, trtllm or transformers.",
)
@click.option(
    "--inflight", type=click.IntRange(1, 2**31), help="Tokens of a step.  [default: the engine's]"
)
@click.option("--explain", is_flag=True, help="Every layer, with its formula in words.")
@click.option("--stack", is_flag=True, help="What each technique saves, one after the other.")
@JSON
def plan(**options: Any) -> None:
    """Say exactly how much memory K and V take, what fits, and why.

    MODEL is a name (docs/models.md), a config.json, a folder or a GGUF file; nothing is fetched.
    Data, what the engine reserves for a request, and growth per token are separate figures.
    """
    from kvik.commands.plan import PlanOptions, plan_model

    plan_model(PlanOptions(**options))


@cli.command(
    epilog="kvik export meta-llama/Llama-3.1-8B --kv fp8 --engine vllm --context 32768\n"
    "kvik export ./model.gguf --kv q8_0/q4_0 --engine llamacpp --batch 4"
)
@MODEL
@click.option("--kv", required=True, help="Recipe, or a type of the engine.")
@click.option("--engine", required=True, help="vllm, sglang, llamacpp, trtllm or transformers.")
@click.option("--context", type=click.IntRange(1, 2**31), help="Tokens.  [default: the model's]")
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1, 10**6))
@click.option("--tp", default=1, type=click.IntRange(1, 4096), help="Tensor parallel devices.")
@click.option("--cp", default=1, type=click.IntRange(1, 4096), help="Context parallel.")
@click.option("--pp", default=1, type=click.IntRange(1, 4096), help="Pipeline stages.")
@click.option("--device", help="What it shall run on: some engines take other defaults there.")
@click.option(
    "--inflight", type=click.IntRange(1, 2**31), help="Tokens of a step.  [default: the engine's]"
)
@JSON
def export(model: str, tp: int, cp: int, pp: int, **options: Any) -> None:
    """Print how to start another engine with a recipe, and what that engine leaves out.

    The command goes to standard output, what cannot be said to standard error.
    """
    from kvik.commands.export import export_recipe

    export_recipe(model, parallel=(tp, cp, pp), **options)
