"""Whether two servers gave the same greedy answers, and how close a call it was where not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvik.bench.serving_meter import Answer
from kvik.engine.session import Session
from kvik.models import Model
from kvik.recipe import Recipe


def agreement(
    model: Model, recipe: Recipe, ours: Sequence[Answer], theirs: Sequence[Answer]
) -> dict[str, Any]:
    """Compares the requests that both answered, in the same order.

    ``equal``: the share of whole answers that are the same. ``widest_gap``: at the first token
    that differs, how far our recipe's logit of our token is above that of theirs, the widest of
    all; a small gap is a tie that rounding decides, a wide one is the recipe's own opinion.
    """
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.complete and b.complete]
    gaps = [gap(model, recipe, a, b.tokens) for a, b in pairs if a.tokens != b.tokens]
    return {
        "compared": len(pairs),
        "equal": 1 - len(gaps) / len(pairs) if pairs else None,
        "widest_gap": max(gaps, default=None),
    }


def gap(model: Model, recipe: Recipe, answer: Answer, other: Sequence[int]) -> float:
    """The difference of the logits of the two tokens where the answers part."""
    both = zip(answer.tokens, other, strict=True)
    at = next(i for i, (x, y) in enumerate(both) if x != y)
    ids = [*answer.asked.prompt, *answer.tokens[:at]]
    row = Session(model, recipe, max_tokens=len(ids)).feed(ids)[0]
    return float(row[answer.tokens[at]] - row[other[at]])
