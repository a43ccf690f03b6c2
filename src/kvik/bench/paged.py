"""The same trace on kvik's own engine, pool and tables.

Only the model is missing: no attention is computed and no byte of K or V is written, so that the
pool takes addresses and no memory. Admission, preemption and pages are the engine's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from kvik.bench.parts import Parts
from kvik.bench.simulate import Preempted, Request
from kvik.engine.engine import Engine
from kvik.errors import KvikError
from kvik.recipe import Plan
from kvik.spec.model import ModelSpec

if TYPE_CHECKING:
    from kvik.cache.table import Sequence
    from kvik.models import Model
    from kvik.models.parts import Numbers, StepCache

# More tokens, and sequences, than a step ever has. A prompt is computed in the step in which its
# request is admitted and no count of requests is too high, as for the systems that reserve.
NO_LIMIT = 1 << 40


def slot_bytes(plan: Plan) -> int:
    """Bytes of one token's codes in every layer, as the plan's pages store them."""
    return sum(-(-group.main.nbytes // group.tokens) for group in plan.groups)


def check_pages(plan: Plan) -> None:
    """KvikError unless the plan caches tokens in pages that need no attention to be filled."""
    if plan.recompute or not plan.groups:
        raise KvikError(f"{plan.recipe} caches no tokens: there is no waste to report")
    if any(group.evicting for group in plan.groups):
        raise KvikError(
            f"{plan.recipe} chooses tokens by attention, and this report computes none: "
            "use a recipe that keeps tokens by position"
        )


@dataclass(frozen=True)
class Blank:
    """What an engine needs of a model, without weights: its one token is always the next."""

    spec: ModelSpec
    path: None = None
    eos_ids: frozenset[int] = frozenset()

    def forward(
        self, tokens: Numbers, positions: Numbers, cache: StepCache, rows: Tensor | None = None
    ) -> Tensor:
        """Logits [N, 1], or [len(rows), 1]."""
        return torch.zeros(len(tokens if rows is None else rows), 1)


class Paged:
    """A budget in the pages of an engine's pool.

    The engine does not know how long a request will get: it is told to stop once the step that
    gave the last token has been looked at, so that parts are those of the moment before memory is
    freed, as for the other systems. No prefix cache: no two prompts of a trace are the same. No
    swap space, for there are no bytes to keep: who is preempted is computed again.
    """

    name = "kvik"

    def __init__(self, plan: Plan, *, budget: int) -> None:
        check_pages(plan)
        self.budget, self.plan = budget, plan
        self.engine = Engine(
            cast("Model", Blank(replace(plan.spec, vocab=1))),
            plan.recipe,
            memory=budget,
            step_tokens=NO_LIMIT,
            max_running=NO_LIMIT,
            prefix_cache=False,
        )
        self._requests: dict[int, Request] = {}
        self._numbers: dict[Request, int] = {}
        self._needed = 0  # tokens that the requests which ended had to have computed, once

    @property
    def waiting(self) -> int:
        """How many are in line, preempted ones included."""
        return len(self.engine.scheduler.waiting)

    @property
    def running(self) -> list[Request]:
        """Those that the engine runs."""
        return [self._requests[job.id] for job in self.engine.scheduler.running]

    def add(self, request: Request) -> None:
        """Gives a request to the engine; CapacityError when it would not fit even alone."""
        arrival = request.arrival
        # One token more than it will get: the engine itself never ends it.
        number = self.engine.add((0,) * arrival.prompt, max_new=arrival.output + 1)
        self._requests[number], self._numbers[request] = request, number

    def step(self) -> None:
        """A step of the engine; RuntimeError if it leaves a part of a text for later."""
        for output in self.engine.step():
            if output.finish == "error":
                raise RuntimeError(f"the engine gave request {output.id} up: {output.reason}")
            if output.tokens:
                self._requests[output.id].produced += len(output.tokens)
        for request, (sequence,) in zip(self.running, self._sequences(), strict=True):
            if sequence.length != request.cached:
                raise RuntimeError(f"{sequence.length} tokens are cached, not {request.cached}")

    def end(self, request: Request) -> None:
        """Tells the engine that no more is wanted, which frees the pages."""
        number = self._numbers.pop(request)
        self.engine.abort(number)
        del self._requests[number]
        self._needed += request.arrival.final

    def preempted(self) -> Preempted:
        """As the engine counts it, in requests and in tokens computed."""
        stats = self.engine.stats()
        again = stats.computed - self._needed
        return Preempted(stats.counts.recomputed, stats.counts.swapped, again)

    def parts(self) -> Parts:
        """What is held by the tables of the requests, what is stranded and free by the pool.

        Pages that are nobody's are in none of the parts, which then do not add up.
        """
        tokens = held = 0
        for sequences in self._sequences():
            for sequence in sequences:
                mine, all_of_it = self._held(sequence)
                tokens, held = tokens + mine, held + all_of_it
        stats = self.engine.cache.pool.stats()
        free, cut = stats.free, self.budget - stats.total  # what is no whole slab serves nobody
        waiting = self.waiting > 0
        hole = waiting and self._fragmented(free)
        return Parts(
            tokens=tokens,
            internal=held - tokens,
            external=free if hole else 0,
            stranded=stats.stranded + cut,
            leftover=free if waiting and not hole else 0,
            idle=0 if waiting else free,
        )

    def _sequences(self) -> list[list[Sequence]]:
        """What each running request holds."""
        jobs = self.engine.scheduler.running
        return [[b.sequence for b in j.branches if b.sequence is not None] for j in jobs]

    def _fragmented(self, free: int) -> bool:
        """Whether the next in line waits for pages of the right sizes and not for bytes."""
        cache, memory = self.engine.cache, self.engine.memory
        first = self.engine.scheduler.waiting[0].live[0]
        # The engine admits a request when a page of each kind is left for all others that run.
        kept_back = memory.reserve(len(self.engine.scheduler.running))
        wanted = memory.add(kept_back, cache.demand(cache.create(), first.known))
        size = sum(n * each for n, each in zip(wanted, cache.pool.page_bytes, strict=True))
        return size <= free and not cache.pool.can_alloc(wanted)

    def _held(self, sequence: Sequence) -> tuple[int, int]:
        """Bytes of the pages of a sequence that hold tokens, and of all its pages."""
        state, tokens, held = sequence.state, 0, 0
        for group, main, tail in zip(self.plan.groups, state.main, state.tail, strict=True):
            sides = [(main, group.main, group.main_ranges)]
            if tail is not None and group.tail is not None:
                sides.append((tail, group.tail, group.tail_ranges))
            for table, page, ranges in sides:
                stored = sum(stop - start for start, stop in ranges(state.length))
                tokens += stored * page.nbytes // page.tokens
                held += table.pages.size * page.nbytes
        return tokens, held
