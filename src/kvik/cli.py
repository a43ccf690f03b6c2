"""The command ``kvik``: parses, calls one public function per verb, turns errors into one line.

Nothing heavy is imported before a verb needs it. Exit status: 0 done, 1 failed, 2 bad input,
130 interrupted, 143 terminated (129 when the terminal went away).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

import click

from kvik import __version__
from kvik.errors import KvikError

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
_MODEL = click.argument("model")


class _Number(click.FloatRange):
    """A finite number in a range; click's own lets NaN through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does, but NaN and infinities are refused."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class _Help(click.Command):
    """A command whose epilog keeps its line breaks, for examples, and that loses no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, but an option given twice is refused: click would keep the last."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param in self.params:
            single = isinstance(param, click.Option) and not (param.multiple or param.is_flag)
            if single and order.count(param) > 1:
                raise click.UsageError(f"{param.opts[0]} is given more than once", ctx)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class _HelpGroup(_Help, click.Group):
    """A group with the same epilog."""

    command_class = _Help


@click.group(
    cls=_HelpGroup,
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


@cli.group(
    cls=_HelpGroup,
    invoke_without_command=True,
    epilog="kvik models\nkvik models get smollm2-135m",
)
@_JSON
@click.pass_context
def models(ctx: click.Context, as_json: bool) -> None:
    """List the built-in models, or fetch one."""
    if ctx.invoked_subcommand is None:
        from kvik.commands.models import list_models

        list_models(as_json)


@models.command("get", epilog="kvik models get smollm2-135m gemma3-270m")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_JSON
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
@_MODEL
@click.argument("prompt", required=False)
@click.option("--kv", "recipe", default="fp16", show_default=True, help="Recipe of the cache.")
@click.option("--file", "file", type=click.Path(), help="Read the prompt from a file.")
@click.option("--system", help="System message of the chat.")
@click.option("--raw", is_flag=True, help="Complete plain text: no chat template.")
@click.option("--max-new", default=256, show_default=True, type=click.IntRange(1))
@click.option("--temperature", default=0.0, show_default=True, type=_Number(0.0))
@click.option("--top-k", default=0, show_default=True, type=click.IntRange(0), help="0: all.")
@click.option("--top-p", default=1.0, show_default=True, type=_Number(0.0, 1.0, min_open=True))
@click.option("--min-p", default=0.0, show_default=True, type=_Number(0.0, 1.0))
@click.option(
    "--repetition-penalty",
    default=1.0,
    show_default=True,
    type=_Number(0.0, min_open=True),
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**64 - 1))
@click.option("--stop", multiple=True, help="Stop before this text; may be repeated.")
@_JSON
def run(model: str, prompt: str | None, as_json: bool, **options: Any) -> None:
    """Generate text, or chat, with a cache of your choice.

    The prompt comes from PROMPT, from --file or from standard input. Without one, at a terminal,
    a chat starts whose history stays in the cache. KV bytes and speed are told at the end.
    """
    from kvik.commands.answer import RunOptions
    from kvik.commands.run import run_model

    run_model(RunOptions(model=model, prompt=prompt, as_json=as_json, **options))


@cli.command(
    epilog="kvik compare smollm2-135m --kv fp16 --kv int8 --kv int4\n"
    "kvik compare smollm2-135m --kv window:256 --kv sinks:4+window:252 --out out/windows\n"
    "kvik compare gemma3-270m --kv int8/int4 --context 4096 --text book.txt --json\n"
    "kvik compare smollm2-135m --kv int4 --out out/new --baseline out/old/compare.json",
)
@_MODEL
@click.option("--kv", "recipes", multiple=True, required=True, help="Recipe; may be repeated.")
@click.option("--context", default=2048, show_default=True, type=click.IntRange(1))
@click.option("--text", type=click.Path(), help="UTF-8 text to measure on, not the built-in one.")
@click.option("--offsets", default=1, show_default=True, type=click.IntRange(1, 100))
@click.option("--out", type=click.Path(), help="Folder for the report, its pictures and data.")
@click.option("--baseline", type=click.Path(), help="An earlier compare.json to tell changes from.")
@_JSON
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
    type=_Number(0.0, 1.0),
    help="Where in the context; may be repeated.  [default: .1, .3, .5, .7, .9]",
)
@click.option("--scored", type=click.IntRange(1, 2**20), help="Tokens that kl and drift score.")
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
@_JSON
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
@_MODEL
@click.option("--text", type=click.Path(), help="UTF-8 text to read, not the built-in one.")
@click.option("--context", default=1024, show_default=True, type=click.IntRange(1))
@click.option("--out", type=click.Path(), help="Folder for the page, pictures, CSV and JSON.")
@_JSON
def inspect(model: str, as_json: bool, **options: Any) -> None:
    """Show what KV-cache techniques rest on, for your model and your text.

    Attention sinks, how few tokens carry attention, what a window keeps, whether heavy hitters
    persist, outlier channels, ranges and 4-bit errors of K and V, rank, and how layers and heads
    differ: in sentences and pictures, for every layer and head.
    """
    from kvik.commands.inspect import inspect_model

    inspect_model(model, as_json=as_json, **options)


@cli.group(
    cls=_HelpGroup, invoke_without_command=True, epilog="kvik bench waste\nkvik bench waste --help"
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
    type=_Number(0.0, 1e6, min_open=True),
    help="Requests that arrive in a second.  [default: 4]",
)
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Of the trace.  [default: 0]")
@click.option(
    "--step",
    default=0.04,
    show_default=True,
    type=_Number(0.0, 1e3, min_open=True),
    help="Seconds that a step takes.",
)
@click.option("--out", type=click.Path(), help="Folder for waste.json, waste.svg and trace.jsonl.")
@_JSON
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
    type=_Number(0.0, 1e6, min_open=True),
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
    type=_Number(0.001, 1000.0),
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
@_JSON
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
        _JSON,
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


@cli.command(
    epilog="kvik plan llama-3-8b --context 32768\n"
    "kvik plan gemma-3-27b --kv int8/int4 --device h100 --batch 8 --explain\n"
    "kvik plan ./config.json --kv int4+sinks:4+window:2044 --memory 24GiB --stack\n"
    "kvik plan gpt-oss-120b --engine vllm --available 5.38GiB --json"
)
@_MODEL
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
@_JSON
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
@_MODEL
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
@_JSON
def export(model: str, tp: int, cp: int, pp: int, **options: Any) -> None:
    """Print how to start another engine with a recipe, and what that engine leaves out.

    The command goes to standard output, what cannot be said to standard error.
    """
    from kvik.commands.export import export_recipe

    export_recipe(model, parallel=(tp, cp, pp), **options)


@cli.command(epilog="kvik doctor\nkvik doctor --json")
@_JSON
def doctor(as_json: bool) -> None:
    """Say what this machine has and what kvik uses of it."""
    from kvik.doctor import examine, show

    facts = examine()
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        show(facts)


def main() -> NoReturn:
    """Entry point of the command."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores a hang-up
            signal.signal(number, _terminate)
    sys.exit(guarded(cli, sys.argv[1:]))


class Terminated(BaseException):
    """A signal asked the process to end; not an Exception, as KeyboardInterrupt is none."""


def _terminate(number: int, frame: FrameType | None) -> None:
    # Signals often come twice, to the process and to its group: cleaning up goes on undisturbed.
    for other in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise Terminated(number)


def guarded(command: click.Command, args: Sequence[str]) -> int:
    """Run a command; its exit status, with every error told in one line on standard error."""
    from kvik.env import debug

    try:
        status = command.main(args=list(args), prog_name="kvik", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        return _tell(error.format_message(), 2)
    except (KeyboardInterrupt, click.Abort):
        return _tell("interrupted", 130)
    except Terminated as error:
        return _tell("terminated", 128 + int(error.args[0]))
    except BrokenPipeError:
        # The reader went away. What is still buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MemoryError:
        return _tell("there is not enough memory: ask for less context or a smaller recipe", 2)
    except KvikError as error:
        return _tell(str(error), 2)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("kvik") or debug():
            return _bug(error, debug())
        return _tell(f"{error.name} is not installed: pip install 'kvik[run]'", 2)
    except Exception as error:
        return _bug(error, debug())


def _tell(message: str, status: int) -> int:
    line = " ".join(message.split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    with contextlib.suppress(OSError):
        print(f"kvik: {line}", file=sys.stderr)
    return status


def _bug(error: Exception, show_traceback: bool) -> int:
    if show_traceback:
        raise error
    name = type(error).__name__
    return _tell(f"this is a bug ({name}: {error}); KVIK_DEBUG=1 shows where it happened", 1)
