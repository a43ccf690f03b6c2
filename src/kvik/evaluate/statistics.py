"""Intervals for means of paired figures (percentile bootstrap, Efron 1979), seeded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
LEVEL = 0.95
BLOCK = 32
NORMAL = 1.959964
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval; None where one value alone says nothing of the spread."""

    value: float
    low: float | None
    high: float | None

    def above(self, bound: float) -> Estimate:
        """The same for a figure that cannot lie below ``bound``."""
        return self if self.low is None else replace(self, low=max(bound, self.low))

    def excludes(self, other: float) -> bool:
        """Whether the interval is there and does not hold ``other``."""
        if self.low is None or self.high is None:
            return False
        return not self.low <= other <= self.high


def blocks(values: Sequence[float], length: int = BLOCK) -> NDArray[np.float64]:
    """(sum, count) ``[n, 2]`` of runs of ``length`` neighbours, which depend on each other."""
    runs = [values[i : i + length] for i in range(0, len(values), length)]
    return np.asarray([(np.sum(run), len(run)) for run in runs], dtype=np.float64)


def mean(values: Sequence[float] | NDArray[np.float64]) -> Estimate:
    """The mean of values that are independent of each other."""
    wide = np.asarray(values, dtype=np.float64)
    return ratio(np.stack([wide, np.ones_like(wide)], axis=-1))


def ratio(parts: NDArray[np.float64], least: float = 0.0) -> Estimate:
    """Sum over sum of ``parts`` ``[n, 2]``, which are independent of each other.

    A mean of unequal runs is one, and so is a share of totals: no single part with a small
    denominator can outweigh the others. Where draws may have a denominator of only the share
    ``least`` of the whole one, or none, the figure has no interval.
    """
    bound = least * parts[:, 1].sum()

    def figure(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
        below = drawn[..., 1].sum(axis=1)
        usable = np.where(below > bound, below, np.nan)
        return drawn[..., 0].sum(axis=1) / usable  # type: ignore[no-any-return]

    return estimate(parts, figure)


def estimate(
    values: NDArray[np.float64], figure: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> Estimate:
    """``figure`` of ``values`` ``[n, m]``, drawn anew along n.

    ``figure`` takes draws ``[draws, n, m]`` and gives ``[draws]``, NaN where a draw has none: then
    there is no interval. Few draws are too much alike: the percentiles' distances are widened as
    Student's t and n / (n - 1) ask.
    """
    value, n = float(figure(values[None])[0]), len(values)
    if n < 2:
        return Estimate(value, None, None)
    draw = np.random.default_rng(0)
    picked = values[draw.integers(0, n, (RESAMPLES, n))]
    tail = (1 - LEVEL) / 2
    figures = figure(picked)
    if np.isnan(figures).any():
        return Estimate(value, None, None)
    low, high = np.quantile(figures, [tail, 1 - tail])
    wider = student(n - 1) / NORMAL * math.sqrt(n / (n - 1))
    return Estimate(
        value,
        value - wider * max(0.0, value - float(low)),
        value + wider * max(0.0, float(high) - value),
    )


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t (for more than ten degrees by its expansion)."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    z = NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def slope(at: NDArray[np.float64], values: NDArray[np.float64]) -> Estimate:
    """Least-squares slope of values against where they were seen."""

    def fitted(pairs: NDArray[np.float64]) -> NDArray[np.float64]:
        x = pairs[..., 0] - pairs[..., 0].mean(axis=1, keepdims=True)
        y = pairs[..., 1] - pairs[..., 1].mean(axis=1, keepdims=True)
        spread: NDArray[np.float64] = np.maximum((x * x).sum(axis=1), 1e-300)
        return (x * y).sum(axis=1) / spread  # type: ignore[no-any-return]

    return estimate(np.stack([at, values], axis=-1), fitted)
