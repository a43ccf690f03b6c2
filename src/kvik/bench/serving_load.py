"""What an open-loop load test sends: prompts of real text, and when each of them arrives.

Open loop: requests arrive when the trace says so, however far behind the server is. Waiting times
are counted from that arrival, so that a slow server cannot hide its queue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from kvik.bench.trace import Arrival
from kvik.errors import KvikError


@dataclass(frozen=True)
class Asked:
    """A request: it arrives ``time`` seconds after the start and wants ``output`` new tokens."""

    time: float
    prompt: tuple[int, ...]
    output: int

    @property
    def final(self) -> int:
        """Tokens cached at its end; the last one that it produces is never fed back."""
        return len(self.prompt) + self.output - 1


def shrink(trace: Sequence[Arrival], scale: float) -> tuple[Arrival, ...]:
    """The trace with prompts and outputs ``scale`` times as long, in whole tokens, 1 or more."""

    def short(tokens: int) -> int:
        return max(1, round(tokens * scale))

    return tuple(replace(a, prompt=short(a.prompt), output=short(a.output)) for a in trace)


def with_rate(trace: Sequence[Arrival], rate: float) -> tuple[Arrival, ...]:
    """The same requests in the same rhythm, stretched so that ``rate`` arrive in a second.

    KvikError for a trace whose requests all arrive at its first moment: it has no rhythm.
    """
    if not 0 < rate < math.inf:
        raise KvikError(f"requests have to arrive: a --rate above 0 is needed, not {rate:g}")
    last = trace[-1].time
    if not last > 0:
        raise KvikError("the requests of the trace all arrive at 0 s: they need times to be spread")
    stretch = len(trace) / last / rate
    return tuple(replace(a, time=a.time * stretch) for a in trace)


def fill(
    trace: Sequence[Arrival], text: Sequence[int], *, head: Sequence[int] = (), seed: int = 0
) -> tuple[Asked, ...]:
    """Gives each request a prompt: ``head`` and a piece of the text, of the length it asks for.

    The pieces follow one another from a place that the seed decides, and begin again at the start
    of the text where it ends; none overlaps another while the text lasts.
    """
    if not text:
        raise KvikError("there is no text to make prompts of")
    start = int(np.random.default_rng(seed).integers(len(text)))
    starts = accumulate((a.prompt for a in trace), initial=start)
    asked = []
    for arrival, at in zip(trace, starts, strict=False):
        piece = (text[(at + i) % len(text)] for i in range(arrival.prompt))
        prompt = (*head, *piece)[: arrival.prompt]
        asked.append(Asked(arrival.time, prompt, arrival.output))
    return tuple(asked)
