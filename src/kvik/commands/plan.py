"""``kvik plan``: what K and V will take, before anything is bought, fetched or started."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvik.commands.results import to_json
from kvik.errors import KvikError
from kvik.machine import human_bytes, parse_bytes
from kvik.models.catalog import BUILTIN
from kvik.plan.document import document
from kvik.plan.fit import Load
from kvik.plan.hardware import find_device
from kvik.plan.ranks import Parallel
from kvik.plan.request import MOST_MEMORY, Request
from kvik.plan.stack import rows
from kvik.plan.weights import check_format
from kvik.spec import ModelSpec
from kvik.spec.load import find_spec


@dataclass(frozen=True)
class PlanOptions:
    """The command line of ``kvik plan``; None is what was not given."""

    model: str
    kv: str
    context: int | None
    batch: int
    device: str | None
    memory: str | None
    available: str | None
    weights: str
    tp: int
    cp: int
    pp: int
    engine: str
    inflight: int | None
    explain: bool
    stack: bool
    as_json: bool


def plan_model(options: PlanOptions) -> None:
    """Compute and print; KvikError where the question makes no sense."""
    device, load = _load(options)
    weights = check_format(options.weights)
    spec = describe(options.model)
    context = context_of(spec, options.context)
    request = Request(
        spec,
        options.kv,
        context,
        options.batch,
        options.engine.casefold(),
        Parallel(options.tp, options.cp, options.pp),
        options.inflight,
        load.memory,
        device,
    )
    answer = document(request, replace(load, context=context), weights, device)
    if options.stack:
        answer["stack"] = rows(request)
    if options.as_json:
        click.echo(to_json(answer), nl=False)
        return
    console = Console() if Console().is_terminal else Console(width=160)
    console.print(_summary(answer, load))
    if options.explain:
        console.print(_layers(answer))
        click.echo(f"{request.engine_rules.title}: {request.engine_rules.rule}")
    if options.stack:
        console.print(_ladder(answer["stack"]))
    for note in answer["notes"]:
        click.echo(f"* {note}")


def describe(model: str) -> ModelSpec:
    """A built-in model's own file where it is here, else a path or the name of a preset."""
    if model.casefold() in BUILTIN:
        from kvik.models import sources

        if path := sources.local(model):
            return find_spec(path)
    return find_spec(model)


def context_of(spec: ModelSpec, given: int | None) -> int:
    """The context to plan for: as given, or that of the model."""
    if given is None and not spec.context:
        raise KvikError(
            f"{spec.name[:80]} does not say for how many tokens it was trained: give --context N"
        )
    return spec.context if given is None else given


def _load(options: PlanOptions) -> tuple[str | None, Load]:
    given = {
        f"--{name}": value
        for name in ("device", "memory", "available")
        if (value := getattr(options, name)) is not None
    }
    if len(given) > 1:
        raise KvikError(f"{' and '.join(given)} contradict each other: give one of them")
    context, batch = options.context or 1, options.batch
    if options.device is not None:
        device = find_device(options.device)
        kept = device.kept_bytes
        return device.name, Load(context, batch, memory=device.memory_bytes, kept=kept)
    if options.memory is not None:
        return None, Load(context, batch, memory=_size(options.memory, "--memory"))
    if options.available is not None:
        return None, Load(context, batch, available=_size(options.available, "--available"))
    return None, Load(context, batch)


def _size(text: str, name: str) -> int:
    try:
        size = parse_bytes(text)
    except KvikError as error:
        raise KvikError(f"{name}: {error}") from None
    if size > MOST_MEMORY:
        raise KvikError(f"{name}: {text[:40]} is more than any machine has")
    return size


FITS = {True: "yes", False: "no", None: "unknown"}


def _table(*columns: tuple[str, bool]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name, right in columns:
        table.add_column(name, justify="right" if right else "left")
    return table


def _bytes(count: int | None) -> str:
    return "unknown" if count is None else f"{human_bytes(count)} ({count:,})"


def _number(value: float | None) -> str:
    return "no bound" if value is None else f"{value:,.2f}".removesuffix(".00")


def _summary(answer: dict[str, Any], load: Load) -> Table:
    table = _table(("", False), ("", False))
    table.show_header = False
    kv, engine = answer["kv"], answer["engine"]
    many = f"{answer['batch']:,} sequences" if answer["batch"] > 1 else "1 sequence"
    facts: list[tuple[str, str]] = [
        ("model", answer["model"]),
        ("recipe", answer["recipe"]),
        ("KV data", f"{_bytes(kv['bytes'])} for {many} of {answer['context']:,} tokens"),
        (f"{engine['name']} reserves", f"{_bytes(engine['reserved_bytes_per_request'])} a request"),
        ("per token", f"{_number(kv['bytes_per_token'])} B inside every window"),
        ("growth", f"{_number(kv['growth_bytes_per_token'])} B a token past all windows"),
        ("fixed state", f"{_bytes(kv['state_bytes_per_sequence'])} a sequence"),
        ("weights", _bytes(answer["weights"]["bytes"])),
    ]
    if load.memory is not None or load.available is not None:
        device, size = answer["device"], load.memory or load.available
        what = device["name"] or ("memory" if load.memory else "memory for KV")
        facts += [
            (what, _bytes(size)),
            ("fits", FITS[answer["fits"]]),
        ]
        figures = {
            "pool of tokens": engine["pool_tokens"],
            "requests at once": engine["max_concurrency"],
            "longest context": answer["max_context"],
            "largest batch": answer["max_batch"],
        }
        known = answer["fits"] is not None
        facts += [(name, _number(n) if known else "unknown") for name, n in figures.items()]
    for name, value in facts:
        table.add_row(Text(name), Text(value))
    return table


def _layers(answer: dict[str, Any]) -> Table:
    """Layers that are alike in one row."""
    table = _table(("layers", False), ("kind", False), ("bytes each", True), ("formula", False))

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["kind"], row["bytes"], re.sub(r"layer \d+", "layer", row["formula"])

    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in answer["kv"]["layers"]:
        found.setdefault(key(row), []).append(row)
    for alike in found.values():
        first, where = alike[0], spans(row["index"] for row in alike)
        words = first["formula"]
        if len(alike) > 1 and first["kind"] == "shared":
            words = "reads the cache of an earlier layer"
        table.add_row(*map(Text, (where, first["kind"], f"{first['bytes']:,}", words)))
    return table


def spans(numbers: Iterable[int]) -> str:
    """Ascending numbers as 0-3,5."""
    runs = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        last = f"-{members[-1]}" if len(members) > 1 else ""
        runs.append(f"{members[0]}{last}")
    return ",".join(runs)


def share(saved: float) -> str:
    """A share in percent; what rounds to nothing has no sign."""
    return f"{saved:.1%}".replace("-0.0%", "0.0%")


def _ladder(steps: list[dict[str, Any]]) -> Table:
    table = _table(("step", False), ("bytes", True), ("", True), ("saves", True), ("in all", True))
    for step in steps:
        table.add_row(
            Text(step["step"]),
            f"{step['bytes']:,}",
            human_bytes(step["bytes"]),
            share(step["saved_of_step"]),
            share(step["saved_of_all"]),
        )
    return table
