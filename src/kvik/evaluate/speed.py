"""Tokens per second of greedy decoding, from single steps."""

from __future__ import annotations

import statistics
import time
from typing import Any

STEPS = 16
SECONDS = 10.0


def decode_rate(session: Any, first: int, *, steps: int = STEPS, seconds: float = SECONDS) -> float:
    """Tokens per second after the tokens in ``session``, starting with token ``first``.

    The median of at most ``steps`` steps within about ``seconds``; one step warms up.
    """
    token, times = first, []
    end = time.perf_counter() + seconds
    for step in range(steps + 1):
        start = time.perf_counter()
        token = int(session.feed([token], logits="last")[-1].argmax())
        stop = time.perf_counter()
        if step or stop > end:
            times.append(stop - start)
        if stop > end:
            break
    return 1.0 / statistics.median(times)
