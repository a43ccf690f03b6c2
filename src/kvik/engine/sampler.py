"""Choose the next token from logits.

Order: repetition penalty, temperature, top-k, top-p, min-p, draw: transformers' order. Each filter
sees the distribution that the one before it left, renormalized. Equal logits rank by id, lowest
first, so that the kept set is the same everywhere; transformers keeps all that tie with the last.

The draw for a position is a function of (seed, sample, position) alone, by a counter-based
generator (Philox 4x64-10, https://doi.org/10.1145/2063384.2063405): batching, preemption and
replay cannot change it. All arithmetic is float64.

Top-p (nucleus): https://arxiv.org/abs/1904.09751. Min-p: https://arxiv.org/abs/2407.01082.
Repetition penalty (CTRL): https://arxiv.org/abs/1909.05858.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from sys import float_info
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, bfloat16

from kvik.errors import KvikError

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
MOST = float_info.max  # whole numbers can be larger, and are no floats then

# For each parameter: its type, whether a value is in range (no NaN is), and how to say so.
_RANGES: dict[str, tuple[type, Callable[[Any], bool], str]] = {
    "temperature": (float, lambda x: 0 <= x <= MOST, "0 (the likeliest token) or more"),
    "top_k": (int, lambda x: 0 <= x < 1 << 63, "a whole number, 0 for all tokens"),
    "top_p": (float, lambda x: 0 < x <= 1, "over 0 and at most 1 (all tokens)"),
    "min_p": (float, lambda x: 0 <= x <= 1, "from 0 (all tokens) to 1"),
    "repetition_penalty": (float, lambda x: 1e-3 <= x <= 1e3, "from 0.001 to 1000; 1 is none"),
    "seed": (int, lambda x: 0 <= x < 1 << 64, "a whole number from 0 to 2**64 - 1"),
}


@dataclass(frozen=True)
class Sampling:
    """How to choose; the defaults take the likeliest token.

    ``temperature``: 0 for the likeliest token, 1 for the model's distribution. ``top_k``: keep
    that many tokens, 0 for all. ``top_p``: keep the fewest likeliest tokens whose probabilities
    reach it. ``min_p``: keep tokens at least that share of the likeliest one's probability.
    ``repetition_penalty``: over 1 makes tokens of the history less likely; 0.001 to 1,000.
    ``seed``: below 2**64.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (kind, fits, wanted) in _RANGES.items():
            value = getattr(self, name)
            kinds = (int, float) if kind is float else kind
            if isinstance(value, bool) or not (isinstance(value, kinds) and fits(value)):
                raise KvikError(f"{name} is {value!r}; it must be {wanted}")
            object.__setattr__(self, name, kind(value))


def sample(
    logits: Tensor, sampling: Sampling, *, history: Sequence[int], sample: int, position: int
) -> int:
    """The next token's id.

    ``logits``: [vocab]; -inf for tokens that cannot come. ``history``: the ids so far, prompt
    included. ``sample``: which of a request's parallel samples; ``position``: of the new token.
    KvikError on NaN or +inf, where no token is possible, and where the penalty leaves a score that
    is no finite number.
    """
    scores = _penalized(_scores(logits), sampling.repetition_penalty, history)
    if sampling.temperature == 0:
        return int(np.argmax(scores))
    ids, weights = _kept(scores, sampling)
    edges = np.cumsum(weights)
    # The product stays below the last edge, for u is at most 1 - 2**-53; and an id without weight
    # has no width between its edges, so that none can be drawn.
    point = uniform(sampling.seed, sample, position) * edges[-1]
    return int(ids[np.searchsorted(edges, point, side="right")])


def logprobs(logits: Tensor) -> Floats:
    """The natural log-probability of every token under the model itself: [vocab], float64.

    Before penalty, temperature and filters, as the OpenAI API reports it.
    """
    scores = _scores(logits)
    shifted = scores - scores.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), dtype=np.float64)


def uniform(seed: int, sample: int, position: int) -> float:
    """The draw for a position: in [0, 1), of 53 bits."""
    key = np.array([seed, sample], dtype=np.uint64)
    counter = np.array([position, 0, 0, 0], dtype=np.uint64)
    bits = int(np.random.Philox(key=key, counter=counter).random_raw())
    return (bits >> 11) * 2.0**-53


def _scores(logits: Tensor) -> Floats:
    # numpy has no bfloat16; torch's own conversion would wake its threads for nothing.
    tensor = logits.detach().cpu()
    scores: Floats = (tensor.float() if tensor.dtype == bfloat16 else tensor).numpy().astype(float)
    if scores.ndim != 1 or not scores.size:
        raise KvikError(f"logits must be [vocab], not {list(scores.shape)}")
    top = scores.max()  # NaN where any is
    if not isfinite(top):
        fault = "NaN" if np.isnan(top) else "infinite" if top > 0 else "all -inf"
        raise KvikError(
            f"the model's logits are {fault}: its weights or its cache hold numbers out of range; "
            "try the recipe fp32"
        )
    return scores


def _penalized(scores: Floats, penalty: float, history: Sequence[int]) -> Floats:
    if penalty == 1 or not history:
        return scores
    seen = np.unique(np.asarray(history, dtype=np.int64))
    if seen[0] < 0 or seen[-1] >= scores.size:
        raise KvikError(f"the history holds ids outside the {scores.size} that have logits")
    scores = scores.copy()
    old = scores[seen]
    with np.errstate(over="ignore"):
        scores[seen] = np.where(old > 0, old / penalty, old * penalty)
    if (np.isfinite(scores[seen]) != np.isfinite(old)).any():
        raise KvikError(
            f"the repetition penalty {penalty} takes the model's logits out of range; use one "
            "nearer to 1"
        )
    return scores


def _kept(scores: Floats, sampling: Sampling) -> tuple[Ids, Floats]:
    """The ids that may come, ascending, and weights in proportion to their probabilities."""
    # The top first: a temperature near 0 then underflows to 0 instead of overflowing.
    with np.errstate(over="ignore"):
        scores = (scores - scores.max()) / sampling.temperature
    ids: Ids = np.arange(scores.size)
    if 0 < sampling.top_k < ids.size:
        ids = np.sort(_ranked(scores, sampling.top_k))
    weights = np.exp(scores[ids])
    if sampling.top_p < 1:
        ids, weights = _nucleus(ids, weights, sampling.top_p)
    if sampling.min_p > 0:
        likely = weights >= sampling.min_p * weights.max()
        ids, weights = ids[likely], weights[likely]
    return ids, weights


def _ranked(scores: Floats, count: int) -> Ids:
    """The places of the ``count`` highest, highest first, equals by place."""
    last = np.partition(scores, -count)[-count]
    ids = np.flatnonzero(scores >= last)
    return ids[np.argsort(-scores[ids], kind="stable")][:count]


def _nucleus(ids: Ids, weights: Floats, share: float) -> tuple[Ids, Floats]:
    """The fewest likeliest tokens that hold ``share`` of all weight."""
    wanted = share * weights.sum()
    count = min(64, ids.size)
    while True:
        ranked = _ranked(weights, count)
        reached = np.cumsum(weights[ranked])
        if reached[-1] >= wanted or count == ids.size:
            break
        count = min(count * 16, ids.size)  # sorting a whole vocabulary takes ten times as long
    keep = np.sort(ranked[: int(np.searchsorted(reached, wanted)) + 1])
    return ids[keep], weights[keep]
