"""Figures of scored tokens, and how far chance alone moves them: a block bootstrap.

Neighbouring tokens are alike, so blocks of 32 consecutive ones are drawn, not tokens. Blocks never
reach over the end of a text. Intervals hold 95 % of the draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
DRAWS = 1000
SHARE = 0.95

Floats = NDArray[np.float64]
Figures = dict[str, float]


@dataclass(frozen=True)
class Sample:
    """Consecutive scored tokens ``[n]`` of one text.

    KL in nats, argmax agreement, and the negative log-likelihoods with this and the full cache.
    """

    kl: Floats
    agree: NDArray[np.bool_]
    nll: Floats
    full_nll: Floats

    def take(self, at: NDArray[np.int64]) -> Sample:
        """Some of the tokens."""
        return Sample(self.kl[at], self.agree[at], self.nll[at], self.full_nll[at])

    @staticmethod
    def join(parts: Sequence[Sample]) -> Sample:
        """The tokens of all parts."""
        names = ("kl", "agree", "nll", "full_nll")
        return Sample(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def figures(sample: Sample) -> Figures:
    """KL (mean and 99th percentile), top-1 agreement, perplexity over the full cache's."""
    return {
        "kl": float(sample.kl.mean()),
        "kl_p99": float(np.quantile(sample.kl, 0.99)),
        "top1": float(sample.agree.mean()),
        "ppl_ratio": float(np.exp((sample.nll - sample.full_nll).mean())),
    }


def blocks(lengths: Sequence[int], block: int = BLOCK) -> list[NDArray[np.int64]]:
    """Indices into the joined tokens of texts of these lengths, one array a block."""
    found, start = [], 0
    for length in lengths:
        stops = [*range(block, length, block), length]
        found += [np.arange(start + a, start + b) for a, b in zip([0, *stops], stops, strict=False)]
        start += length
    return found


@dataclass(frozen=True)
class Noise:
    """95 % intervals of every figure.

    ``interval`` is that of the figure itself. ``other_text`` is where the same figure of ``n``
    tokens of other text like this one would be: it has the noise of both.
    """

    interval: dict[str, tuple[float, float]]
    other_text: dict[str, tuple[float, float]]
    n: int


def noise(
    parts: Sequence[Sample], n: int | None = None, *, block: int = BLOCK, draws: int = DRAWS
) -> Noise:
    """The noise of the figures of ``parts`` (one a text), beside a figure of ``n`` tokens."""
    whole, sizes = Sample.join(parts), [len(part.kl) for part in parts]
    cut, n = blocks(sizes, block), n or sum(sizes)
    draw, value = np.random.default_rng(0), figures(whole)
    ours = [_drawn(whole, cut, len(cut), draw) for _ in range(draws)]
    theirs = [_drawn(whole, cut, max(1, round(n / block)), draw) for _ in range(draws)]
    inside, outside = {}, {}
    for name, at in value.items():
        a, b = (np.array([one[name] for one in many]) for many in (ours, theirs))
        inside[name] = _middle(a)
        outside[name] = _middle(at + b - a)
    return Noise(inside, outside, n)


def _drawn(
    whole: Sample, cut: list[NDArray[np.int64]], count: int, draw: np.random.Generator
) -> Figures:
    chosen = draw.integers(len(cut), size=count)
    return figures(whole.take(np.concatenate([cut[i] for i in chosen])))


def _middle(values: Floats) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return float(low), float(high)
