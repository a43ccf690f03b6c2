"""What becomes of measured seconds. A round is one turn of one system; systems take turns."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

Rounds = Sequence[Sequence[float]]


def summary(rounds: Rounds) -> dict[str, float]:
    """All of a system's seconds, in milliseconds: median, quartiles, least, most, how many."""
    ms = [1e3 * second for one in rounds for second in one]
    low, high = _quartiles(ms)
    return {
        "median": statistics.median(ms),
        "low": low,
        "high": high,
        "least": min(ms),
        "most": max(ms),
        "n": len(ms),
    }


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def ratio(theirs: Rounds, ours: Rounds) -> float:
    """How many times as long they take: the median over rounds of the medians' ratio.

    Both have their turn in every round, one right after the other, so a disturbance that lasts
    meets both and drops out.
    """
    pairs = zip(theirs, ours, strict=True)
    return statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs)
