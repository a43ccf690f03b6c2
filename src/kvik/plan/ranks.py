"""What one device holds of a model that several share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvik.errors import KvikError
from kvik.recipe import Recipe, Scope
from kvik.spec.model import LayerSpec, ModelSpec, StatePart


@dataclass(frozen=True)
class Parallel:
    """Tensor (``tp``), context (``cp``) and pipeline (``pp``) parallelism."""

    tp: int = 1
    cp: int = 1
    pp: int = 1


@dataclass(frozen=True)
class Rank:
    """The part of one device: layers ``start`` to ``start + len(spec.layers)``, heads shared out.

    ``spec`` has the KV heads, streams and states that this device holds, so that everything
    planned for it is the planning of an ordinary model.
    """

    spec: ModelSpec
    start: int
    recipe: Recipe | None


def ranks(spec: ModelSpec, recipe: Recipe | None, parallel: Parallel) -> tuple[Rank, ...]:
    """One device of every pipeline stage; KvikError where the model cannot be cut so.

    Heads are shared out over ``tp`` devices. Where there are more devices than KV heads, each head
    lies on several; latent rows and side streams lie on all.
    """
    count = len(spec.layers)
    if parallel.pp > count:
        raise KvikError(f"{count} layers cannot make {parallel.pp} pipeline stages; lower --pp")
    layers = tuple(_shard(layer, parallel.tp) for layer in spec.layers)
    found, start = [], 0
    for stage in range(parallel.pp):
        size = count // parallel.pp + (stage < count % parallel.pp)
        own = tuple(_moved(layer, start, size) for layer in layers[start : start + size])
        part = None if recipe is None else _cut(recipe, start, size, count)
        found.append(Rank(replace(spec, layers=own), start, part))
        start += size
    return tuple(found)


def _shard(layer: LayerSpec, tp: int) -> LayerSpec:
    if tp == 1:
        return layer
    states = tuple(_shard_state(part, tp) for part in layer.states)
    if layer.kind == "state":
        return replace(layer, states=states)
    heads, kv_heads = layer.heads, layer.kv_heads
    if heads % tp:
        raise KvikError(f"{heads} query heads cannot be shared by --tp {tp}; give a divisor")
    if kv_heads % tp and tp % kv_heads and layer.kind != "latent":
        raise KvikError(f"{kv_heads} KV heads cannot be shared by --tp {tp}; give a divisor")
    held = 1 if layer.kind == "latent" else max(1, kv_heads // tp)
    return replace(layer, heads=heads // tp, kv_heads=held, states=states)


def _shard_state(part: StatePart, tp: int) -> StatePart:
    """Heads (or the channels of a convolution) over the devices; compressors lie on all."""
    if part.name == "compressor":
        return part
    axis = {"conv": len(part.shape) - 1, "cross": 1}.get(part.name, 0)
    shape = list(part.shape)
    if part.groups and part.groups % tp:  # as many copies of groups as each device has one
        shape[axis] += max(0, tp - part.groups) * part.group_width
    shape[axis] = -(-shape[axis] // tp)
    return replace(part, shape=tuple(shape))


def _moved(layer: LayerSpec, start: int, size: int) -> LayerSpec:
    """The layer in a model that begins at layer ``start``."""
    if layer.source is None:
        return layer
    if not start <= layer.source < start + size:
        raise KvikError(
            f"--pp cuts between layer {layer.source} and a layer that reads its cache; "
            "engines refuse that too: use --tp"
        )
    return replace(layer, source=layer.source - start)


def _cut(recipe: Recipe, start: int, size: int, count: int) -> Recipe | None:
    """The stages that are for some of these layers, with layers counted from the first of them."""
    if size == count:
        return recipe
    placed = []
    for stage, scope in recipe.stages:
        if not scope.ranges:
            placed.append((stage, scope))
            continue
        try:
            where = scope.layers(count)
        except ValueError:
            placed.append((stage, scope))  # resolve tells why
            continue
        here = tuple((i - start, i - start) for i in sorted(where) if start <= i < start + size)
        if here:
            placed.append((stage, Scope(here)))
    return Recipe(tuple(placed)) if placed else Recipe.parse("fp16")
