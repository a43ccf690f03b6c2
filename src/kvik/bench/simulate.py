"""Discrete-event simulation of iteration-level batching over one trace.

All requests that run take part in every step, and each step gives each of them one token (Orca,
OSDI 2022); a prompt is cached in the step in which its request is admitted. First come, first
served: the first request in line is admitted or nobody is. Steps last equally long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvik.bench.parts import Parts
from kvik.bench.trace import Arrival
from kvik.errors import CapacityError


@dataclass(eq=False)
class Request:
    """A request on its way: tokens it has been given, and tokens of it that are cached."""

    arrival: Arrival
    produced: int = 0
    cached: int = 0

    @property
    def count(self) -> int:
        """Tokens that its next step caches: its text so far, or the token produced last."""
        return self.arrival.prompt + self.produced - self.cached

    @property
    def done(self) -> bool:
        """Whether it has all its tokens."""
        return self.produced == self.arrival.output


class System(Protocol):
    """A way of managing a KV budget."""

    name: str
    budget: int

    def grow(self, running: Sequence[Request]) -> list[Request]:
        """Makes room for one more token of each; returns those that had to give their memory up."""

    def admit(self, request: Request) -> bool:
        """Makes room for a request beside those that run; False where there is none now."""

    def step(self, running: Sequence[Request]) -> None:
        """Caches ``count`` tokens of each request."""

    def end(self, request: Request) -> None:
        """Takes back all the memory of a request."""

    def parts(self, running: Sequence[Request], waiting: bool) -> Parts:
        """What the budget is doing after a step; ``waiting`` tells whether anybody is in line."""


@dataclass
class Run:
    """What one system made of a trace, counted as it goes.

    ``parts`` sums bytes over the *loaded* steps, those before which some request was in line or
    still to come; ``batch`` sums the requests that ran in them and ``peak`` is the most at once.
    ``in_time`` counts the requests that were done when the last one arrived, ``waited`` sums the
    seconds from arrival to admission, ``seconds`` is when all were done. ``recomputed`` counts
    the tokens that preempted requests had cached and had to cache again; the steps in which they
    do last no longer than others, so it is a cost beside the seconds.
    """

    system: str
    parts: Parts = field(default_factory=Parts)
    steps: int = 0
    batch: int = 0
    peak: int = 0
    finished: int = 0
    in_time: int = 0
    waited: float = 0.0
    seconds: float = 0.0
    preemptions: int = 0
    recomputed: int = 0

    @property
    def mean(self) -> float:
        """Requests that ran at once, averaged over the loaded steps."""
        return self.batch / max(self.steps, 1)

    @property
    def wait(self) -> float:
        """Mean seconds from arrival to admission."""
        return self.waited / max(self.finished, 1)

    def count(self, parts: Parts, running: int) -> None:
        """Adds a loaded step."""
        self.parts, self.steps = self.parts.plus(parts), self.steps + 1
        self.batch, self.peak = self.batch + running, max(self.peak, running)


Watch = Callable[[Parts, Sequence[Request]], None]


def simulate(
    trace: Sequence[Arrival], system: System, *, step_seconds: float, watch: Watch | None = None
) -> Run:
    """Runs the trace to its end. ``watch`` sees the parts and the running requests of each step.

    CapacityError where one request does not fit even alone. RuntimeError where the parts of a
    step do not add up to the budget, or where memory is missing at the end.
    """
    run, empty = Run(system.name), system.parts((), False)
    coming, line = deque(map(Request, trace)), deque[Request]()
    running: list[Request] = []
    while coming or line or running:
        while coming and coming[0].arrival.time <= run.seconds:
            line.append(coming.popleft())
        if not line and not running:
            run.seconds = coming[0].arrival.time
            continue
        loaded = bool(coming or line)
        _admit(system, running, line, run)
        system.step(running)
        for request in running:
            request.cached += request.count
            request.produced += 1
        parts = system.parts(running, bool(line))
        _check(system, parts)
        if watch is not None:
            watch(parts, running)
        if loaded:
            run.count(parts, len(running))
        run.seconds += step_seconds
        for request in [r for r in running if r.done]:
            system.end(request)
            running.remove(request)
            run.finished += 1
            run.in_time += run.seconds <= trace[-1].time
    if system.parts((), False) != empty:
        raise RuntimeError(f"{system.name} ends with {system.parts((), False)}, not {empty}")
    return run


def _admit(system: System, running: list[Request], line: deque[Request], run: Run) -> None:
    """Who takes part in the coming step: those that run, as far as they fit, then the line."""
    given_up = system.grow(running)
    for request in given_up:
        running.remove(request)
        run.recomputed += request.cached
        request.cached = 0
        line.appendleft(request)
    run.preemptions += len(given_up)
    while line and not given_up and system.admit(line[0]):
        request = line.popleft()
        running.append(request)
        if not request.produced:
            run.waited += run.seconds - request.arrival.time
    if not running:
        tokens = line[0].arrival.prompt + line[0].produced
        raise CapacityError(
            f"{system.name} cannot hold one request of {tokens:,} tokens in "
            f"{system.budget:,} bytes: give more memory"
        )


def _check(system: System, parts: Parts) -> None:
    if parts.total != system.budget or min(parts) < 0:
        raise RuntimeError(f"{system.name}: {parts} does not add up to {system.budget:,} bytes")
