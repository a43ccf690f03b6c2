"""Layers that read the cache of another layer, and layers with two caches."""

from __future__ import annotations

from dataclasses import replace

from kvik.spec.fields import Fields
from kvik.spec.model import LayerSpec


def last_of_kind(fields: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Gemma 3n and 4: the last ``num_kv_shared_layers`` layers read from earlier ones.

    Each reads the last layer of its own kind that has a cache.
    """
    first = len(layers) - fields.whole("num_kv_shared_layers", 0)
    if first < 1:
        raise fields.wrong("num_kv_shared_layers", f"less than the {len(layers)} layers")
    sources = {layer.kind: index for index, layer in enumerate(layers[:first])}
    for layer in layers[first:]:
        if layer.kind not in sources:
            raise fields.wrong("num_kv_shared_layers", f"so that a {layer.kind} layer stays")
    shared = (replace(y, kind="shared", source=sources[y.kind]) for y in layers[first:])
    return (*layers[:first], *shared)


def twice(fields: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """LongCat-Flash: each layer of ``num_layers`` has two attentions with caches of their own."""
    return tuple(layer for layer in layers for _ in range(2))


def cross_layer(fields: Fields, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """CLA (arXiv 2405.12981): of ``cla_share_factor`` neighbours the first keeps the cache."""
    if not fields.flag("use_cla", False):
        return layers
    factor = fields.integer("cla_share_factor")
    return tuple(
        replace(layer, kind="shared", source=index - index % factor) if index % factor else layer
        for index, layer in enumerate(layers)
    )
