"""Discrete-event simulation of iteration-level batching over one trace.

All requests that run take part in every step, and each step gives each of them one token (Orca,
OSDI 2022); a prompt is cached in the step in which its request is admitted. First come, first
served: the first request in line is admitted or nobody is.

What a step costs: ``step_seconds``, however many requests run and however many tokens are
computed. So prompts cost nothing beside the tokens that are produced meanwhile, for any system;
nor does a preempted request's text when it is computed again. Only a system that preempts would
pay for that, so those tokens are counted in ``Run.recomputed``: a cost beside the seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kvik.bench.parts import Parts
from kvik.bench.trace import Arrival
from kvik.errors import CapacityError


@dataclass(eq=False)
class Request:
    """A request on its way, and how many tokens it has been given."""

    arrival: Arrival
    produced: int = 0

    @property
    def cached(self) -> int:
        """Tokens of it that are cached after a step in which it ran; the newest is not fed yet."""
        return self.arrival.prompt + self.produced - 1

    @property
    def done(self) -> bool:
        """Whether it has all its tokens."""
        return self.produced == self.arrival.output


class Preempted(NamedTuple):
    """How often requests gave their memory up, and what that cost.

    Times that they were ``recomputed`` or copied out (``swapped``), and the ``tokens`` that were
    computed once more than needed.
    """

    recomputed: int = 0
    swapped: int = 0
    tokens: int = 0


class System(Protocol):
    """A way of managing a KV budget, and who is served by it."""

    name: str
    budget: int

    @property
    def waiting(self) -> int:
        """How many are in line."""

    @property
    def running(self) -> list[Request]:
        """Those that took part in the last step and have not ended."""

    def add(self, request: Request) -> None:
        """Puts a request at the end of the line."""

    def step(self) -> None:
        """Admits who fits, caches what is known of those that run, gives each one token more."""

    def end(self, request: Request) -> None:
        """Takes back all the memory of a request that ran in the last step."""

    def parts(self) -> Parts:
        """What the budget is doing after a step."""

    def preempted(self) -> Preempted:
        """What it cost so far to take memory back from requests, once all have ended."""


@dataclass
class Run:
    """What one system made of a trace, counted as it goes.

    ``parts`` sums bytes over the *loaded* steps, those before which some request was in line or
    still to come; ``batch`` sums the requests that ran in them and ``peak`` is the most at once.
    ``in_time`` counts the requests that were done when the last one arrived, ``waited`` sums the
    seconds from arrival to admission, ``seconds`` is when all were done.
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
    preempted: Preempted = field(default_factory=Preempted)

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
    run, empty, coming = Run(system.name), system.parts(), deque(map(Request, trace))
    while coming or system.waiting or system.running:
        while coming and coming[0].arrival.time <= run.seconds:
            system.add(coming.popleft())
        if not system.waiting and not system.running:
            run.seconds = coming[0].arrival.time
            continue
        loaded = bool(coming or system.waiting)
        system.step()
        running, parts = system.running, system.parts()
        _check(system, running, parts)
        if watch is not None:
            watch(parts, running)
        if loaded:
            run.count(parts, len(running))
        run.waited += sum(run.seconds - r.arrival.time for r in running if r.produced == 1)
        run.seconds += step_seconds
        for request in [r for r in running if r.done]:
            system.end(request)
            run.finished += 1
            run.in_time += run.seconds <= trace[-1].time
    if system.parts() != empty:
        raise RuntimeError(f"{system.name} ends with {system.parts()}, not {empty}")
    run.preempted = system.preempted()
    return run


def _check(system: System, running: Sequence[Request], parts: Parts) -> None:
    if not running:
        raise CapacityError(
            f"{system.name} cannot hold the next request in {system.budget:,} bytes, even alone: "
            "give more memory"
        )
    if parts.total != system.budget or min(parts) < 0:
        raise RuntimeError(f"{system.name}: {parts} does not add up to {system.budget:,} bytes")
