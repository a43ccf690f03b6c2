"""What a choice of tokens, made in the middle of a text, keeps of the attention after it.

A technique that drops tokens looks back and bets on what later queries will want. Here each way of
choosing is given the same number of tokens of every KV head, and what the later queries put on them
is divided by what they put on all tokens it could choose from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kvik.evaluate.inspect.attention import SINKS, Attention, seen_from
from kvik.spec.model import LayerSpec

BUDGETS = (0.1, 0.2)
RULES = ("heavy", "distinct", "small", "recent", "best")


@dataclass(frozen=True)
class Chosen:
    """``kept[rule][budget]`` [H]: share of the later attention that falls on the chosen tokens.

    ``beyond`` is the same without the first 4 tokens, which are neither chosen nor counted.
    ``candidates`` is how many tokens could be chosen. ``heavy`` takes those with the most attention
    so far (H2O), ``distinct`` those whose keys are least like the mean key (KeyDiff), ``small``
    those with the shortest keys (K-norm), ``recent`` the last ones and ``best`` those that the
    later queries will indeed want, which no technique can know. ``pooled[budget]`` is what the
    heads of the layer keep together when ``heavy`` may share the budget out between them (Ada-KV).
    """

    candidates: int
    kept: dict[str, dict[float, Tensor]]
    beyond: dict[str, dict[float, Tensor]]
    pooled: dict[float, float]


def chosen(figures: Attention, keys: Tensor, spec: LayerSpec) -> Chosen | None:
    """Choices among the tokens before the middle that the query there still sees.

    ``keys`` [H, T, D] are rotated, as a cache holds them. None where too few tokens are left.
    """
    tokens = keys.shape[1]
    middle = tokens // 2
    first = int(seen_from(torch.tensor([middle]), spec))
    if middle - first < 10:
        return None
    early, late = figures.early[:, first:middle], figures.late[:, first:middle]
    scores = _scores(early, late, keys[:, first:middle])
    skip = SINKS[-1] if first == 0 else 0
    return Chosen(
        candidates=middle - first,
        kept=_kept(scores, late),
        beyond=_kept({rule: s[:, skip:] for rule, s in scores.items()}, late[:, skip:]),
        pooled={b: _pooled(early, late, b) for b in BUDGETS},
    )


def _scores(early: Tensor, late: Tensor, keys: Tensor) -> dict[str, Tensor]:
    """What each rule goes by, [H, candidates]; the highest are kept."""
    keys = keys.double()
    mean = functional.normalize(keys, dim=-1).mean(1, keepdim=True)
    return {
        "heavy": early,
        "distinct": -functional.cosine_similarity(keys, mean, dim=-1),
        "small": -keys.norm(dim=-1),
        "recent": torch.arange(keys.shape[1], dtype=torch.float64).expand_as(early),
        "best": late,
    }


def _kept(scores: dict[str, Tensor], late: Tensor) -> dict[str, dict[float, Tensor]]:
    whole = late.sum(-1).clamp(min=torch.finfo(torch.float64).tiny)
    return {
        rule: {
            b: late.gather(-1, score.topk(_count(b, late.shape[-1]), -1).indices).sum(-1) / whole
            for b in BUDGETS
        }
        for rule, score in scores.items()
    }


def _pooled(early: Tensor, late: Tensor, budget: float) -> float:
    count = early.shape[0] * _count(budget, early.shape[1])
    best = early.flatten().topk(count).indices
    return float(late.flatten()[best].sum() / late.sum())


def _count(budget: float, candidates: int) -> int:
    return max(1, round(budget * candidates))
