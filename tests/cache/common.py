"""Caches fed with random q, k and v: the cache does not care where they come from."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from kvik.cache import KVCache, PagePool, Sequence
from kvik.models import Model
from kvik.recipe import Recipe
from kvik.testing import models

# Recipes and models that have every kind of table between them.
STACKS = [
    ("int8", "grouped"),
    ("int8/int4+sinks:3+window:20+page:7", "plain"),
    ("perchannel:4,residual=7", "grouped"),
    ("int8/perchannel:8,residual=0+page:16", "plain"),
    ("heavy:9,every=16+page:4", "plain"),
    ("spread:12@1+int4+page:5", "plain"),
    ("perchannel+page:16", "latent"),
    ("int8+page:7", "stateful"),
]


def build(recipe: str, model: str, nbytes: int = 1 << 20) -> tuple[Model, KVCache]:
    """A tiny model and a cache for it in a poisoned pool."""
    loaded: Model = getattr(models, model)()
    plan = Recipe.parse(recipe).resolve(loaded.spec)
    return loaded, KVCache(plan, PagePool(plan.page_bytes, nbytes, poison=True))


def run(cache: KVCache, sequences: Seq[Sequence], counts: Seq[int], seed: int = 0) -> torch.Tensor:
    """One step; what its last layer with attention gave."""
    cache.plan(sequences, counts)
    out = attend(cache, sum(counts), seed)
    cache.commit()
    return out


def attend(cache: KVCache, rows: int, seed: int = 0) -> torch.Tensor:
    """All layers of a planned step with values that depend on ``seed`` alone."""
    generator = torch.Generator().manual_seed(seed)
    out = torch.empty(0)
    for index, layer in enumerate(cache.resolved.spec.layers):
        if layer.kind == "state":
            cache.write_state(index, cache.read_state(index) + 1)
            continue
        q, k, v = (
            torch.randn(rows, heads, dim, generator=generator, dtype=torch.float64)
            for heads, dim in (
                (layer.heads, layer.k_dim),
                (layer.kv_heads, layer.k_dim),
                (layer.kv_heads, layer.v_dim),
            )
        )
        shared, latent = layer.kind == "shared", layer.kind == "latent"
        out, _ = cache.attend(index, q, None if shared else k, None if shared or latent else v)
    return out
