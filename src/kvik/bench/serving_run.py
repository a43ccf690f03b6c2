"""The open loop, and kvik's engine as a server in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from kvik.bench.serving_load import Asked
from kvik.bench.serving_meter import Meter
from kvik.engine.engine import Engine
from kvik.engine.request import Request
from kvik.errors import CapacityError
from kvik.models import Model
from kvik.models.parts import Numbers, StepCache
from kvik.recipe import Recipe


class Clock:
    """Seconds since it was made, and waiting for a moment; a test puts a simulated one here."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    def wait(self, moment: float) -> None:
        """Returns at ``moment`` or a little later."""
        time.sleep(max(0.0, moment - self.now()))


class Server(Protocol):
    """What takes requests in and answers them; it tells the meter what it does."""

    meter: Meter

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""

    def add(self, number: int, asked: Asked) -> None:
        """Queues the request of that number; CapacityError where it could never run."""

    def step(self, clock: Clock) -> None:
        """Works for a while; requests that arrive meanwhile wait until it returns."""


def serve(
    server: Server,
    load: Sequence[Asked],
    make_clock: Callable[[], Clock] = Clock,
    tell: Callable[[int], None] = lambda tokens: None,
) -> Meter:
    """Sends the load, in order of arrival, at its own times; returns when all is answered.

    ``tell`` is given the tokens generated so far after every step.
    """
    meter, clock, sent = server.meter, make_clock(), 0
    while sent < len(load) or server.busy:
        while sent < len(load) and load[sent].time <= clock.now():
            try:
                server.add(sent, load[sent])
            except CapacityError as error:
                meter.answers[sent].refused = str(error)
            sent += 1
        if server.busy:
            server.step(clock)
            tell(sum(len(a.tokens) for a in meter.answers))
        elif sent < len(load):
            clock.wait(load[sent].time)
    return meter


@dataclass(frozen=True)
class _Watched(Model):
    """A model that calls ``watch`` in every step, while all the step's pages are held."""

    watch: Callable[[], None] = field(default=lambda: None, compare=False)

    def forward(
        self, tokens: Numbers, positions: Numbers, cache: StepCache, rows: Tensor | None = None
    ) -> Tensor:
        self.watch()
        return super().forward(tokens, positions, cache, rows)


class KvikServer:
    """The engine with one recipe in ``memory`` bytes; greedy, and no token ends a text early."""

    def __init__(
        self, model: Model, recipe: Recipe | str, load: Sequence[Asked], *, memory: int, tokens: int
    ) -> None:
        self.meter = Meter.of(load)
        self._numbers: dict[int, int] = {}
        self._held = (0, 0)
        watched = _Watched(
            model.name, model.spec, model.decoder, model.path, model.origin, self._look
        )
        self.engine = Engine(watched, recipe, memory=memory, step_tokens=tokens)
        # The first call of every kernel is slow, and the tokenizer is read when first needed.
        self.engine.generate([Request((0,), max_new=2, share=False)])
        self._held = (0, 0)

    @property
    def busy(self) -> bool:
        """Whether a request runs or waits."""
        return self.engine.busy

    def add(self, number: int, asked: Asked) -> None:
        """Queues a request; CapacityError when it could never run in the engine's memory."""
        request = Request(asked.prompt, max_new=asked.output, eos_ids=frozenset())
        self._numbers[self.engine.add(request)] = number

    def step(self, clock: Clock) -> None:
        """One step of the engine."""
        meter, start = self.meter, clock.now()
        outputs = self.engine.step()
        now = clock.now()
        meter.ran(now - start, *self._held)
        for output in outputs:
            number = self._numbers[output.id]
            for token in output.tokens:
                meter.token(number, token, now)
            if output.finish not in (None, "length"):
                meter.answers[number].failed = output.reason or str(output.finish)
        counts = self.engine.stats().counts
        meter.preemptions = counts.swapped + counts.recomputed
        meter.prefix_tokens = counts.reused

    def _look(self) -> None:
        stats = self.engine.stats()
        self._held = (stats.running, stats.pool.used)
