"""Serving without paging: a contiguous block for each request, from admission to its end.

The three baselines of the PagedAttention paper (arXiv 2309.06180), over a buddy allocator. They
differ in what they know of a request's length:

Max      nothing: the longest request the model allows
Pow2     the output to within a factor of two: the prompt and the output's next power of two
Oracle   everything: exactly the tokens that will be cached
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kvik.bench.buddy import Buddy, power_of_two
from kvik.bench.parts import Parts
from kvik.bench.simulate import Preempted, Request
from kvik.bench.trace import Arrival

# Slots to reserve for a request where the longest one has so many tokens.
Policy = Callable[[Arrival, int], int]

POLICIES: dict[str, Policy] = {
    "Max": lambda arrival, longest: longest,
    "Pow2": lambda arrival, longest: min(arrival.prompt + power_of_two(arrival.output), longest),
    "Oracle": lambda arrival, longest: arrival.final,
}


class Reservation:
    """A budget in slots of one token, ``slot_bytes`` each, under one of the policies."""

    def __init__(self, policy: str, *, budget: int, slot_bytes: int, longest: int) -> None:
        self.name, self.budget, self.slot_bytes = policy, budget, slot_bytes
        self.longest, self._policy = longest, POLICIES[policy]
        self.buddy = Buddy(budget // slot_bytes)
        self._address: dict[Request, int] = {}  # of those that run
        self._line: deque[Request] = deque()
        self._fragmented = False

    @property
    def waiting(self) -> int:
        """How many are in line."""
        return len(self._line)

    @property
    def running(self) -> list[Request]:
        """Those that have a block."""
        return list(self._address)

    def add(self, request: Request) -> None:
        """Puts a request at the end of the line."""
        self._line.append(request)

    def step(self) -> None:
        """Gives blocks to the first in line, then a token to each that has one."""
        while self._line and self._admit(self._line[0]):
            self._line.popleft()
        for request in self._address:
            request.produced += 1

    def _admit(self, request: Request) -> bool:
        """Reserves the request's block, if there is one that large."""
        slots = self._slots(request)
        address = self.buddy.alloc(slots)
        if address is None:
            self._fragmented = slots <= self.buddy.free
            return False
        self._address[request] = address
        return True

    def end(self, request: Request) -> None:
        """Frees the block."""
        self.buddy.release(self._address.pop(request))

    def preempted(self) -> Preempted:
        """Nothing: what was reserved is kept to the end."""
        return Preempted()

    def parts(self) -> Parts:
        """By the requests that run and their blocks; the free slots by the one in line."""
        tokens = reserved = internal = rounding = 0
        for request, address in self._address.items():
            slots, final = self._slots(request), request.arrival.final
            tokens += request.cached
            reserved += final - request.cached
            internal += slots - final
            rounding += self.buddy.block(address) - slots
        free = self.buddy.free * self.slot_bytes
        short = self.budget % self.slot_bytes  # less than a slot: as unused as what is left over
        waiting = bool(self._line)
        hole = waiting and self._fragmented
        return Parts(
            tokens=tokens * self.slot_bytes,
            reserved=reserved * self.slot_bytes,
            internal=internal * self.slot_bytes,
            external=rounding * self.slot_bytes + (free if hole else 0),
            leftover=(short if hole else short + free) if waiting else 0,
            idle=0 if waiting else short + free,
        )

    def _slots(self, request: Request) -> int:
        return self._policy(request.arrival, self.longest)
