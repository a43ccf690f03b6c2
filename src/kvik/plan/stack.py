"""The ladder of savings: what each technique takes off, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kvik.errors import RecipeError
from kvik.plan.data import layer_data, resolve
from kvik.plan.request import Request
from kvik.recipe import Recipe, Slot
from kvik.spec.model import LayerSpec, ModelSpec


@dataclass(frozen=True)
class Step:
    """One rung: ``nbytes`` of all sequences once everything up to it is in place."""

    name: str
    nbytes: int


def _mha(layer: LayerSpec) -> LayerSpec:
    """Every query head with K and V of its own, every token kept."""
    if layer.kind == "state":
        return layer
    k, v = layer.expanded or (layer.k_dim, layer.v_dim)
    return replace(
        layer,
        kind="full",
        kv_heads=layer.heads,
        k_dim=k,
        v_dim=v,
        window=None,
        source=None,
        extra=(),
    )


def _grouped(layer: LayerSpec) -> LayerSpec:
    if layer.kind in ("state", "latent"):
        return _mha(layer)
    return replace(layer, kind="full", window=None, source=None)


def _latent(layer: LayerSpec) -> LayerSpec:
    return replace(layer, window=None) if layer.kind == "latent" else _grouped(layer)


def _shared(layer: LayerSpec) -> LayerSpec:
    return layer if layer.kind == "shared" else _latent(layer)


ARCHITECTURE: tuple[tuple[str, Callable[[LayerSpec], LayerSpec]], ...] = (
    ("MHA: K and V for every query head, 16 bits", _mha),
    ("KV heads that several query heads share (GQA, MQA)", _grouped),
    ("latent rows (MLA)", _latent),
    ("layers that read another's cache", _shared),
    ("windows of the model's own", lambda layer: layer),
)


def ladder(request: Request) -> list[Step]:
    """Rungs that change something, from multi-head attention in 16 bits to what is reserved."""
    steps: list[Step] = []
    base = Recipe.parse("fp16")
    for name, change in ARCHITECTURE:
        spec = replace(request.spec, layers=tuple(change(y) for y in request.spec.layers))
        _add(steps, name, _data(request, base, spec))
    if request.recipe is None:
        _add(steps, request.kv, request.batch * sum(y.nbytes + y.state for y in request.layers))
    else:
        for recipe in _growing(request.recipe):
            _add(steps, str(recipe), _data(request, recipe, request.spec))
    engine = request.engine_rules
    if request.parallel.tp == request.parallel.cp == request.parallel.pp == 1:
        held = request.batch * engine.request_bytes(request.context)
        _add(steps, f"as {engine.title} reserves it", held)
    return steps


def _add(steps: list[Step], name: str, nbytes: int) -> None:
    if not steps or steps[-1].nbytes != nbytes:
        steps.append(Step(name, nbytes))


def _growing(recipe: Recipe) -> list[Recipe]:
    """The recipe's codecs alone, then everything; what needs the rest to be legal comes with it."""
    codecs = tuple(p for p in recipe.stages if p[0].slot <= Slot.CODEC)
    return [Recipe(codecs), recipe] if codecs else [recipe]


def _data(request: Request, recipe: Recipe, spec: ModelSpec) -> int:
    try:
        plan = resolve(recipe, spec)
    except RecipeError:
        plan = resolve(request.recipe or recipe, spec)
    layers = layer_data(plan, spec, request.context)
    return request.batch * sum(layer.nbytes + layer.state for layer in layers)


def rows(request: Request) -> list[dict[str, Any]]:
    """The ladder as JSON has it, with the share saved of the rung above and of the first."""
    steps = ladder(request)
    found, before = [], steps[0].nbytes
    for step in steps:
        found.append(
            {
                "step": step.name,
                "bytes": step.nbytes,
                "saved_of_step": _saved(step.nbytes, before),
                "saved_of_all": _saved(step.nbytes, steps[0].nbytes),
            }
        )
        before = step.nbytes
    return found


def _saved(now: int, before: int) -> float:
    return 1.0 - now / before if before else 0.0
