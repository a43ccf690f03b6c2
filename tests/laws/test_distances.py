"""No recipe scores a key of a sliding layer at a distance that the model never sees there."""

from __future__ import annotations

import random

import pytest
import torch
from tests import tracers

from kvik.errors import RecipeError
from kvik.recipe import Recipe, Slot
from kvik.recipe.retention import Kept
from kvik.testing import OracleCache, models, stacks

assert tracers.Heavy.examples  # importing them registered them

EDGES = ("sinks:1+window:23", "sinks:4+window:20", "sinks:5+window:20", "sinks:2+window:1")
ORIGINAL = ("sinks:5,positions=original+window:17", "sinks:2,positions=original+window:22")


def farthest(kept: Kept, window: int) -> int:
    """Over the oracle's own list of what each query sees, the largest distance scored."""
    model = models.grouped()
    layer = model.spec.layers[1]
    assert (layer.kind, layer.window) == ("sliding", window)
    span, most = kept.span, 0
    assert span is not None
    oracle = OracleCache(Recipe.parse("fp32").resolve(model.spec))
    plan = oracle.resolved.layers[1]
    assert plan is not None
    object.__setattr__(plan, "kept", kept)
    tokens = random.Random(2).choices(range(96), k=75)
    oracle.plan(len(tokens))
    model.forward(torch.tensor(tokens), oracle.positions, oracle)
    oracle.commit()
    for query in range(len(tokens)):
        for token in oracle.tokens(1, query, 0):
            near = token < kept.sinks and kept.in_cache
            most = max(most, (min(query, span - 1) if near else query) - token)
    return most


@pytest.mark.parametrize("recipe", [*stacks.examples(Slot.RETENTION), *EDGES, *ORIGINAL])
def test_sliding_layers_score_within_their_window(recipe: str) -> None:
    spec = models.grouped().spec
    if recipe in ORIGINAL:
        with pytest.raises(RecipeError, match="beyond the 24 tokens"):
            Recipe.parse(recipe).resolve(spec)
        return
    plan = Recipe.parse(recipe).resolve(spec)
    assert plan.layers[1] is not None
    assert farthest(plan.layers[1].kept, 24) < 24


def test_original_positions_would_score_beyond_it() -> None:
    """The control: what is refused is what goes too far."""
    assert farthest(Kept(17, 5, in_cache=False), 24) > 24
    assert farthest(Kept(17, 5, in_cache=True), 24) < 24
