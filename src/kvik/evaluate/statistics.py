"""Intervals for means of paired figures (percentile bootstrap, Efron 1979), seeded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = 0.95
BLOCK = 32


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval; None where one value alone says nothing of the spread."""

    value: float
    low: float | None
    high: float | None

    def excludes(self, other: float) -> bool:
        """Whether the interval is there and does not hold ``other``."""
        if self.low is None or self.high is None:
            return False
        return not self.low <= other <= self.high


def blocks(values: Sequence[float], length: int = BLOCK) -> NDArray[np.float64]:
    """Means of runs of ``length`` neighbours, which depend on each other; the rest is the last."""
    return np.asarray([np.mean(values[i : i + length]) for i in range(0, len(values), length)])


def mean(values: Sequence[float] | NDArray[np.float64]) -> Estimate:
    """The mean of values that are independent of each other."""
    return estimate(np.asarray(values, dtype=np.float64), lambda drawn: drawn.mean(axis=1))


def estimate(
    values: NDArray[np.float64], figure: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> Estimate:
    """``figure`` of ``values`` ``[n]`` or ``[n, m]``, drawn anew along n.

    ``figure`` takes draws ``[draws, n]`` (or ``[draws, n, m]``) and gives ``[draws]``.
    """
    value = float(figure(values[None])[0])
    if len(values) < 2:
        return Estimate(value, None, None)
    draw = np.random.default_rng(0)
    picked = values[draw.integers(0, len(values), (RESAMPLES, len(values)))]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(figure(picked), [tail, 1 - tail])
    return Estimate(value, float(low), float(high))


def slope(at: NDArray[np.float64], values: NDArray[np.float64]) -> Estimate:
    """Least-squares slope of values against where they were seen."""

    def fitted(pairs: NDArray[np.float64]) -> NDArray[np.float64]:
        x = pairs[..., 0] - pairs[..., 0].mean(axis=1, keepdims=True)
        y = pairs[..., 1] - pairs[..., 1].mean(axis=1, keepdims=True)
        spread: NDArray[np.float64] = np.maximum((x * x).sum(axis=1), 1e-300)
        return (x * y).sum(axis=1) / spread  # type: ignore[no-any-return]

    return estimate(np.stack([at, values], axis=-1), fitted)
