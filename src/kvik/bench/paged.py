"""The same trace on kvik's own pool and tables.

No attention is computed and no byte of K or V is written, so that the pool takes addresses and no
memory; everything else is what a model would use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvik.bench.parts import Parts
from kvik.bench.simulate import Request
from kvik.cache import KVCache, PagePool, choose_slab
from kvik.cache.table import Sequence as Cached
from kvik.errors import KvikError
from kvik.recipe import Plan


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


class Paged:
    """A budget in the pages of one pool; what does not fit is preempted, newest first.

    A preempted request gives everything up and computes its text anew when there is room.
    """

    name = "kvik"

    def __init__(self, plan: Plan, *, budget: int) -> None:
        check_pages(plan)
        self.budget, self.plan = budget, plan
        slab = choose_slab(plan.page_bytes)
        self.pool = PagePool(plan.page_bytes, budget // slab * slab, slab_bytes=slab)
        self.cache = KVCache(plan, self.pool)
        self._sequences: dict[Request, Cached] = {}
        self._demand = (0,) * len(plan.page_bytes)  # of the coming step, as far as it is known
        self._fragmented = False

    def grow(self, running: Sequence[Request]) -> list[Request]:
        """Preempts the newest requests until the next tokens of the others fit."""
        needs = [self.cache.demand(self._sequences[request], 1) for request in running]
        self._demand = self._sum(needs)
        given_up: list[Request] = []
        while not self.pool.can_alloc(self._demand):
            given_up.append(running[-1 - len(given_up)])
            self.end(given_up[-1])
            self._demand = self._sum(needs[: -len(given_up)])
        return given_up

    def admit(self, request: Request) -> bool:
        """Takes a request in if its text fits beside the next tokens of the others."""
        sequence = self.cache.create()
        demand = self._sum((self._demand, self.cache.demand(sequence, request.count)))
        if not self.pool.can_alloc(demand):
            wanted = sum(n * size for n, size in zip(demand, self.pool.page_bytes, strict=True))
            self._fragmented = wanted <= self.pool.stats().free
            return False
        self._sequences[request], self._demand = sequence, demand
        return True

    def step(self, running: Sequence[Request]) -> None:
        """One step of all requests, without the attention in between."""
        sequences = [self._sequences[request] for request in running]
        self.cache.plan(sequences, [request.count for request in running])
        self.cache.commit()

    def end(self, request: Request) -> None:
        """Frees the pages."""
        self.cache.free(self._sequences.pop(request))

    def parts(self, running: Sequence[Request], waiting: bool) -> Parts:
        """What is held by the tables of the requests, what is stranded and free by the pool.

        Pages that are nobody's are in none of the parts, which then do not add up.
        """
        tokens = held = 0
        for request in running:
            mine, all_of_it = self._held(self._sequences[request])
            tokens, held = tokens + mine, held + all_of_it
        stats = self.pool.stats()
        free, cut = stats.free, self.budget - stats.total  # what is no whole slab serves nobody
        hole = waiting and self._fragmented
        return Parts(
            tokens=tokens,
            internal=held - tokens,
            external=free if hole else 0,
            stranded=stats.stranded + cut,
            leftover=free if waiting and not hole else 0,
            idle=0 if waiting else free,
        )

    def _held(self, sequence: Cached) -> tuple[int, int]:
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

    def _sum(self, demands: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
        none = (0,) * len(self.pool.page_bytes)
        return tuple(map(sum, zip(none, *demands, strict=True)))
