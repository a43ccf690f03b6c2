"""How the planned bytes of a recipe grow with the context, and where they outgrow the weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from kvik.plan import kv_bytes

if TYPE_CHECKING:
    from kvik.recipe import Plan

FIRST = 128
FARTHEST = 1 << 24  # tokens; who has not outgrown the weights there is said never to
DRAWN = 1 << 20


def outgrows(plan: Plan, weights: int) -> int | None:
    """The context in tokens at which the cache first takes more bytes than the weights.

    None where it does not up to ``FARTHEST`` tokens, as with a window.
    """
    low, high = 0, 1
    while kv_bytes(plan, high).total <= weights:
        low, high = high, 2 * high
        if high > FARTHEST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if kv_bytes(plan, middle).total <= weights else (low, middle)
    return high


def contexts(*wanted: int | None) -> list[int]:
    """Powers of two from ``FIRST`` to beyond all that is ``wanted``, or to ``DRAWN``."""
    most = min(DRAWN, max((w for w in wanted if w), default=FIRST))
    powers = [1 << n for n in range(7, 25)]
    below = list(takewhile(lambda n: n < most, powers))
    return [*below, powers[len(below)]]


def growth(plan: Plan, at: Sequence[int]) -> list[int]:
    """Planned bytes of one sequence at each context."""
    return [kv_bytes(plan, tokens).total for tokens in at]
