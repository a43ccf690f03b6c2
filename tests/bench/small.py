"""A small model, its traffic and a budget in which requests have to wait."""

from __future__ import annotations

from kvik.bench.trace import Arrival, Lengths, Shape, generate
from kvik.bench.waste import Setting
from kvik.recipe import Recipe
from kvik.spec.model import LayerSpec, ModelSpec

LAYER = LayerSpec("full", 2, 2, 32, 32)
SPEC = ModelSpec("small", "shape", (LAYER,) * 4, context=256, vocab=10, hidden=64, ffn=64)
TRAFFIC = Shape(Lengths(20.0, 1.0), Lengths(40.0, 0.8))


def setting(recipe: str = "fp16+page:16", slots: int = 1500) -> Setting:
    """``slots`` tokens of the recipe, and 100 bytes more than that."""
    one = Setting(Recipe.parse(recipe).resolve(SPEC), 0, 256, 1.0)
    return Setting(one.plan, slots * one.slot + 100, 256, 1.0)


def trace(requests: int = 60, rate: float = 2.0, seed: int = 0) -> tuple[Arrival, ...]:
    return generate(TRAFFIC, requests=requests, rate=rate, context=256, seed=seed)
