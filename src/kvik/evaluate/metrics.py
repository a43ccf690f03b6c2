"""How far the predictions of a compressed cache are from those of the full one.

Everything is in float64 over logits of any float type, a few rows at a time, so that 512 rows of a
large vocabulary cost little memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvik.errors import KvikError

Array = NDArray[Any]
BLOCK = 32


@dataclass(frozen=True)
class Rows:
    """One value per scored token: KL in nats, argmax agreement, negative log-likelihood."""

    kl: NDArray[np.float64]
    agree: NDArray[np.bool_]
    nll: NDArray[np.float64]

    @staticmethod
    def join(parts: Sequence[Rows]) -> Rows:
        """The rows of all parts, in order."""
        return Rows(
            np.concatenate([p.kl for p in parts]),
            np.concatenate([p.agree for p in parts]),
            np.concatenate([p.nll for p in parts]),
        )


@dataclass(frozen=True)
class Quality:
    """KL(full || compressed) in nats, share of equal argmaxes, perplexity; ``tokens`` scored."""

    kl_mean: float
    kl_p99: float
    top1: float
    ppl: float
    tokens: int


def log_softmax(logits: Array) -> NDArray[np.float64]:
    """Log-probabilities of logits ``[n, vocab]`` in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def score(reference: Array, logits: Array, targets: Array) -> Rows:
    """Compare logits ``[n, vocab]`` with the full cache's and with the tokens ``[n]`` that came.

    Raises KvikError where a logit is not a finite number: such a result has no quality.
    """
    if reference.shape != logits.shape or len(targets) != len(logits):
        raise ValueError(f"{reference.shape} against {logits.shape} and {len(targets)} targets")
    return Rows.join(
        [
            _block(reference[i : i + BLOCK], logits[i : i + BLOCK], targets[i : i + BLOCK])
            for i in range(0, len(logits), BLOCK)
        ]
    )


def _block(reference: Array, logits: Array, targets: Array) -> Rows:
    if not np.isfinite(logits).all():
        raise KvikError("the model's logits are not finite numbers with this cache")
    full, ours = log_softmax(reference), log_softmax(logits)
    kl = (np.exp(full) * (full - ours)).sum(axis=-1)
    return Rows(
        np.maximum(kl, 0.0),  # rounding alone can leave -1e-17
        reference.argmax(axis=-1) == logits.argmax(axis=-1),
        -ours[np.arange(len(targets)), targets],
    )


def perplexity(nll: float) -> float:
    """e to the mean negative log-likelihood, at most e^700: JSON has no infinity."""
    return math.exp(min(nll, 700.0))


def summarize(rows: Rows) -> Quality:
    """The figures of a table row."""
    return Quality(
        kl_mean=float(rows.kl.mean()),
        kl_p99=float(np.quantile(rows.kl, 0.99)),
        top1=float(rows.agree.mean()),
        ppl=perplexity(float(rows.nll.mean())),
        tokens=len(rows.kl),
    )
