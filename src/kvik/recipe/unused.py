"""Stages that no layer uses: a recipe that says something to no effect is refused."""

from __future__ import annotations

from collections.abc import Sequence

from kvik.recipe.grammar import format_placed
from kvik.recipe.plan import LayerPlan
from kvik.recipe.retention import Evicting, Kept, Positional
from kvik.recipe.scope import Scope
from kvik.recipe.stage import Slot, Stage
from kvik.spec.model import LayerSpec, ModelSpec

SHOWN = 2  # causes that a reason names; a model may have a hundred layers alike
PLAIN = "fp16"
NO_TOKENS = f"no layer of this model keeps tokens; write {PLAIN}"
Placed = tuple[Stage, Scope]
Scoped = Sequence[tuple[Placed, frozenset[int]]]


def unused(scoped: Scoped, layers: Sequence[LayerPlan | None], spec: ModelSpec) -> list[str]:
    """A reason, with a remedy, for each stage that changes nothing on any layer it is for.

    A model of states alone has nothing to say a recipe for; the plain one is as good as none.
    """
    if not any(layer.caches_tokens for layer in spec.layers):
        said = (format_placed(placed) for placed, _ in scoped)
        return [f"{text!r} has no effect: {NO_TOKENS}" for text in said if text != PLAIN]
    found = []
    for placed, where in scoped:
        causes = [_cause(placed, i, scoped, layers[i], spec) for i in sorted(where)]
        if causes and all(causes):
            why = list(dict.fromkeys(cause for cause in causes if cause))
            more = [f"{len(why) - SHOWN} more layers alike"] if len(why) > SHOWN else []
            shown = "; ".join([*why[:SHOWN], *more])
            found.append(f"'{format_placed(placed)}' has no effect: {shown}")
    return list(dict.fromkeys(found))


def _cause(
    placed: Placed, index: int, scoped: Scoped, plan: LayerPlan | None, spec: ModelSpec
) -> str | None:
    """Why a stage does nothing on a layer; None when it does something."""
    stage, scope = placed
    layer = spec.layers[index]
    if plan is None:
        if layer.kind == "shared":
            return f"layer {index} reads the cache of layer {layer.source}; write @{layer.source}"
        return f"layer {index} keeps a state and no tokens; scope it to other layers"
    over = [p for p, where in scoped if index in where and p[0].slot == stage.slot and p[1].ranges]
    if over and not scope.ranges:
        names = " and ".join(f"'{format_placed(p)}'" for p in over)
        return f"{names} replaces it on every layer it was left; remove one of them"
    if stage.slot == Slot.RETENTION:
        return _no_retention(stage, plan, layer)
    return None


def _no_retention(stage: Stage, plan: LayerPlan, layer: LayerSpec) -> str | None:
    if layer.kind != "sliding":
        return None
    own = f"the layers slide over {layer.window} tokens by design"
    if isinstance(stage, Evicting) and plan.evicting is None:
        return f"{own} and choose none; write window:N, or scope it to other layers"
    if isinstance(stage, Positional) and plan.kept == Kept(layer.window):
        return f"{own}; write a window below that, sinks included, or leave it out"
    return None
