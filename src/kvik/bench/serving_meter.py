"""What a load test writes down while it runs, and the figures that come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from kvik.bench.serving_load import Asked


@dataclass
class Answer:
    """What came of a request: its tokens and when each was there, in seconds from the start.

    ``refused``: why it was never taken in; ``failed``: why it ended before its time.
    """

    asked: Asked
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    refused: str = ""
    failed: str = ""

    @property
    def complete(self) -> bool:
        """Whether it has all the tokens that it asked for."""
        return len(self.tokens) == self.asked.output


@dataclass
class Meter:
    """The answers of one run, and what the server held over time.

    ``busy``: seconds and the number of requests that ran during them; ``peak_bytes``: most bytes
    of K and V that they held at once.
    """

    answers: list[Answer]
    busy: list[tuple[float, int]] = field(default_factory=list)
    peak_bytes: int = 0
    preemptions: int = 0
    prefix_tokens: int = 0

    @classmethod
    def of(cls, load: Sequence[Asked]) -> Meter:
        """An empty one for these requests."""
        return cls([Answer(asked) for asked in load])

    def ran(self, seconds: float, running: int, nbytes: int) -> None:
        """So many requests ran for so long, holding so much."""
        self.busy.append((seconds, running))
        self.peak_bytes = max(self.peak_bytes, nbytes)

    def token(self, number: int, token: int, now: float) -> None:
        """A request got its next token."""
        self.answers[number].tokens.append(token)
        self.answers[number].times.append(now)

    def figures(self) -> dict[str, Any]:
        """The run in numbers; a time that nothing was measured of is None.

        ``seconds`` go from the first arrival to the last token. ``ttft``: from arrival to the
        first token; ``itl``: between one token and the next of the same request; ``latency``: from
        arrival to the last token. Concurrency is averaged over those seconds, idle ones included.
        """
        done = [a for a in self.answers if a.complete]
        times = [t for a in self.answers for t in a.times]
        first = min(a.asked.time for a in self.answers)
        seconds = max(times) - first if times else 0.0
        per = 1 / seconds if seconds > 0 else 0.0
        return {
            "completed": len(done),
            "refused": sum(bool(a.refused) for a in self.answers),
            "failed": sum(bool(a.failed) for a in self.answers),
            "seconds": seconds,
            "tokens": len(times),
            "tokens_s": len(times) * per,
            "requests_s": len(done) * per,
            "ttft": spread([a.times[0] - a.asked.time for a in self.answers if a.times]),
            "itl": spread([b - a for one in self.answers for a, b in pairwise(one.times)]),
            "latency": spread([a.times[-1] - a.asked.time for a in done]),
            "concurrent_mean": sum(t * n for t, n in self.busy) * per,
            "concurrent_peak": max((n for _, n in self.busy), default=0),
            "preemptions": self.preemptions,
            "prefix_tokens": self.prefix_tokens,
            "peak_bytes": self.peak_bytes,
        }


def spread(seconds: Sequence[float]) -> dict[str, float] | None:
    """Mean and percentiles, interpolated between the two nearest; None of nothing."""
    if not seconds:
        return None
    shares = {"p50": 50, "p90": 90, "p99": 99}
    found = {name: float(np.percentile(seconds, share)) for name, share in shares.items()}
    return {"mean": float(np.mean(seconds)), **found}
