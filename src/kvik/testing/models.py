"""Tiny models for conformance: every kind of layer, in float64 so that only logic can differ."""

from __future__ import annotations

import torch

from kvik.models import Model
from kvik.models.random import random_model
from kvik.spec.model import LayerSpec, ModelSpec, Rope

VOCAB = 96
ROPE = Rope(32, 10_000.0)


def _model(name: str, *layers: LayerSpec) -> Model:
    spec = ModelSpec(name, "llama", layers, context=4096, vocab=VOCAB, hidden=48, ffn=64)
    return random_model(spec, seed=7, dtype=torch.float64)


def grouped() -> Model:
    """GQA (2 KV heads, 3 queries each) and a sliding layer of 24 tokens."""
    return _model(
        "grouped",
        LayerSpec("full", 6, 2, 32, 32, rope=ROPE),
        LayerSpec("sliding", 6, 2, 32, 32, window=24, rope=Rope(32, 1000.0), softcap=30.0),
    )


def latent() -> Model:
    """MLA: one row of 64 + 32 channels for 4 heads, V inside K, beside a GQA layer."""
    return _model(
        "latent",
        LayerSpec("latent", 4, 1, 96, 64, rope=Rope(32, 10_000.0, "interleaved", offset=64)),
        LayerSpec("full", 4, 2, 32, 32, rope=ROPE),
    )


def stateful() -> Model:
    """A layer with a mutable state, attention, a layer that shares its cache, attention again."""
    return _model(
        "stateful",
        LayerSpec("state", 2, 2, 0, 0, state_shape=(2, 16, 16)),
        LayerSpec("full", 6, 2, 32, 32, rope=ROPE),
        LayerSpec("shared", 6, 2, 32, 32, rope=ROPE, source=1),
        LayerSpec("full", 6, 2, 32, 32, rope=ROPE),
    )


def plain() -> Model:
    """Two ordinary GQA layers."""
    layer = LayerSpec("full", 6, 2, 32, 32, rope=ROPE)
    return _model("plain", layer, layer)


def single() -> Model:
    """One ordinary GQA layer: the cheapest model whose answers depend on its cache."""
    return _model("single", LayerSpec("full", 6, 2, 32, 32, rope=ROPE))
