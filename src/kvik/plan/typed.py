"""Pure data of a model in a cache type that only some engine has."""

from __future__ import annotations

from fractions import Fraction

from kvik.plan.data import LayerData
from kvik.plan.engines.base import CacheType
from kvik.spec.model import LayerSpec, ModelSpec


def typed_data(kind: CacheType, spec: ModelSpec, tokens: int) -> list[LayerData]:
    """Every layer: all tokens, or those of its window, in rows of ``kind``."""
    return [_layer(kind, index, layer, tokens) for index, layer in enumerate(spec.layers)]


def _layer(kind: CacheType, index: int, layer: LayerSpec, tokens: int) -> LayerData:
    row = kind.row(layer)
    held = min(tokens, layer.window) if layer.window else tokens
    sides = sum((Fraction(kind.extra(e), e.ratio) for e in layer.extra), Fraction())
    nbytes = row * held + sum(kind.extra(e) * e.rows(tokens) for e in layer.extra)
    if not layer.caches_tokens:
        words = "keeps no tokens" if layer.kind == "state" else f"reads layer {layer.source}"
        return LayerData(index, layer.kind, 0, Fraction(), Fraction(), layer.state_bytes, words)
    words = f"{kind.name} = {row:,} B a token; x {held:,} of {tokens:,} tokens"
    growth = sides if layer.window else sides + row
    return LayerData(index, layer.kind, nbytes, row + sides, growth, layer.state_bytes, words)
