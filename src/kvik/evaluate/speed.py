"""Tokens per second of greedy decoding, from single steps, at a few contexts."""

from __future__ import annotations

import statistics
import time
from typing import Any

STEPS = 16
SECONDS = 10.0
# On the way to the whole context, at these shares of it: a shorter look.
ON_THE_WAY = (0.25, 0.5)
FEW_STEPS = 8
FEW_SECONDS = 3.0


def points(context: int) -> list[int]:
    """Contexts at which decoding is timed: on the way, and the whole one last."""
    way = {max(1, int(context * share)) for share in ON_THE_WAY}
    return [*sorted(way - {context}), context]


def steps(context: int) -> int:
    """Timed steps of a recipe at all of :func:`points`, for its progress."""
    return STEPS + FEW_STEPS * (len(points(context)) - 1)


def decode_rate(session: Any, first: int, *, steps: int = STEPS, seconds: float = SECONDS) -> float:
    """Tokens per second after the tokens in ``session``, starting with token ``first``.

    The median of at most ``steps`` steps within about ``seconds``; one step warms up.
    """
    token, times = first, []
    end = time.perf_counter() + seconds
    for step in range(steps + 1):
        start = time.perf_counter()
        # By numpy: torch takes a while to find the largest of many.
        token = int(session.feed([token], logits="last")[-1].numpy().argmax())
        stop = time.perf_counter()
        if step or stop > end:
            times.append(stop - start)
        if stop > end:
            break
    return 1.0 / statistics.median(times)
