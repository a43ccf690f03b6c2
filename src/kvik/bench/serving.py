"""Throughput and latency against offered load, at one KV budget, for recipes and a peer."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvik.bench.padded import PaddedServer, load_peer, token_bytes
from kvik.bench.serving_agree import agreement
from kvik.bench.serving_load import Asked, fill, with_rate
from kvik.bench.serving_meter import Meter
from kvik.bench.serving_run import Clock, KvikServer, serve
from kvik.bench.trace import Arrival
from kvik.engine.engine import Engine
from kvik.engine.request import Request
from kvik.errors import CapacityError, KvikError
from kvik.models import Model
from kvik.recipe import Recipe

PEER = "transformers"

NOTES = (
    "Open loop: requests arrive at their own times, however far behind the server is; times to "
    "the first token are counted from arrival.",
    "Each run has few requests, so its p99 is near its slowest request, and throughput includes "
    "the beginning and the end, when few requests run.",
    "kvik's kernels here are the plain torch reference, so its speed is no statement about what "
    "the hardware can do; how many requests the budget holds at once is.",
    "The peer's batches are bounded by what its cache holds in the end; copies that it makes of "
    "the cache while it grows are not counted against it.",
    "Prompts are real text, but no end token ends an answer: each has the length that the trace "
    "asks for.",
)


@dataclass(frozen=True)
class Setting:
    """What is measured: each recipe at each rate, on the same requests in the same memory.

    ``text`` are token ids for the prompts, ``head`` those that every prompt begins with.
    """

    model: Model
    recipes: tuple[Recipe, ...]
    trace: tuple[Arrival, ...]
    rates: tuple[float, ...]
    memory: int
    step_tokens: int
    text: tuple[int, ...]
    head: tuple[int, ...] = ()
    peer: bool = False
    seed: int = 0

    def load(self, rate: float) -> tuple[Asked, ...]:
        """The requests, arriving at that rate."""
        trace = with_rate(self.trace, rate)
        return fill(trace, self.text, head=self.head, seed=self.seed)

    def check(self) -> None:
        """KvikError where a request is too long for the model, or where a recipe can run none."""
        load, context = self.load(self.rates[0]), self.model.spec.context
        longest = max(asked.final for asked in load)
        if longest > context:
            raise KvikError(
                f"a request of the trace needs {longest:,} tokens and {self.model.name} reads "
                f"{context:,}: give a smaller --scale or another trace"
            )
        least = min(load, key=lambda asked: asked.final)
        for recipe in self.recipes:
            engine = Engine(self.model, recipe, memory=self.memory)
            try:
                engine.add(Request(least.prompt, max_new=least.output))
            except CapacityError as error:
                raise CapacityError(f"{recipe}: no request of the trace fits: {error}") from None
        if self.peer:
            token_bytes(self.model.spec)


class Progress(Protocol):
    """Who hears how far it is."""

    def begin(self, recipe: str, total: int) -> None:
        """A run of so many tokens begins."""

    def advance(self, stage: str, tokens: int) -> None:
        """So many more of its tokens are there."""

    def end(self, result: dict[str, Any]) -> None:
        """It is over."""


def measure(
    setting: Setting, progress: Progress, make_clock: Callable[[], Clock] = Clock
) -> list[dict[str, Any]]:
    """All runs, rate by rate, so that what disturbs the machine meets neighbours alike."""
    setting.check()
    peer = load_peer(setting.model.path) if setting.peer and setting.model.path else None
    runs: list[dict[str, Any]] = []
    for rate in setting.rates:
        load, theirs = setting.load(rate), None
        if peer is not None:
            spec = setting.model.spec
            padded = PaddedServer(peer, spec, load, memory=setting.memory)
            theirs = _run(padded, load, f"{PEER}, {rate:g}/s", progress, make_clock)
            batches = {"batches": [len(batch) for batch in padded.batches]}
            runs.append(_facts(PEER, None, rate, theirs) | batches)
        for recipe in setting.recipes:
            server = KvikServer(
                setting.model, recipe, load, memory=setting.memory, tokens=setting.step_tokens
            )
            ours = _run(server, load, f"{recipe}, {rate:g}/s", progress, make_clock)
            facts = _facts("kvik", str(recipe), rate, ours)
            if theirs is not None:
                answers = ours.answers, theirs.answers
                facts["agreement"] = agreement(setting.model, recipe, *answers)
            runs.append(facts)
    return runs


def _run(
    server: KvikServer | PaddedServer,
    load: Sequence[Asked],
    name: str,
    progress: Progress,
    make_clock: Callable[[], Clock],
) -> Meter:
    before = 0

    def tell(tokens: int) -> None:
        nonlocal before
        progress.advance("serving", tokens - before)
        before = tokens

    progress.begin(name, sum(asked.output for asked in load))
    meter = serve(server, load, make_clock, tell)
    progress.end({})
    return meter


def _facts(system: str, recipe: str | None, rate: float, meter: Meter) -> dict[str, Any]:
    output = statistics.fmean(a.asked.output for a in meter.answers)
    return {
        "system": system,
        "recipe": recipe,
        "rate": rate,
        "offered_tokens_s": rate * output,
        "requests": len(meter.answers),
        **meter.figures(),
    }


def document(setting: Setting, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The result as JSON has it; times are in seconds."""
    load = setting.load(setting.rates[0])
    return {
        "model": setting.model.name,
        "memory_bytes": setting.memory,
        "step_tokens": setting.step_tokens,
        "seed": setting.seed,
        "trace": {
            "requests": len(load),
            "prompt_mean": statistics.fmean(len(a.prompt) for a in load),
            "prompt_most": max(len(a.prompt) for a in load),
            "output_mean": statistics.fmean(a.output for a in load),
            "output_most": max(a.output for a in load),
        },
        "runs": list(runs),
        "notes": list(NOTES),
    }
