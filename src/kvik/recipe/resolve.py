"""Resolve: from a recipe and a model to one plan per layer, or to every reason why not."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import replace

from kvik.errors import RecipeError
from kvik.recipe.codec import Codec
from kvik.recipe.grammar import format_placed
from kvik.recipe.layout import PageFormat, StreamLayout, page_format
from kvik.recipe.plan import Group, LayerPlan, Plan
from kvik.recipe.recipe import Recipe
from kvik.recipe.retention import Evicting, Kept, Positional
from kvik.recipe.scope import Scope
from kvik.recipe.stage import Layout, Slot, Stage, load_stages, named
from kvik.recipe.unused import unused
from kvik.spec.model import LayerSpec, ModelSpec

DEFAULT_CODEC = "fp16"
DEFAULT_PAGE = 32
NOT_YET = (Slot.TRANSFORM, Slot.BUDGET, Slot.READS, Slot.PLACEMENT)


def resolve(recipe: Recipe, spec: ModelSpec) -> Plan:
    """The plan of ``recipe`` on ``spec``; RecipeError holds every reason, each with a remedy."""
    load_stages()
    reasons: list[str] = []
    scoped = [(p, _layers(p, spec, reasons)) for p in recipe.stages]
    if reasons:
        checks = (
            r for (s, _), where in scoped if not where for y in spec.layers for r in s.check(y)
        )
        raise RecipeError(*dict.fromkeys([*reasons, *checks]))
    layers: list[LayerPlan | None] = []
    pages: dict[int, int] = {}
    alike: dict[Hashable, tuple[LayerPlan | None, int]] = {}  # a model has few kinds of layers
    for index, layer in enumerate(spec.layers):
        stages = [p for p, where in scoped if index in where]
        key = (layer, *stages)
        try:
            if key not in alike:
                alike[key] = _resolve_layer(index, layer, stages)
            plan, pages[index] = alike[key]
            layers.append(None if plan is None else replace(plan, index=index))
        except RecipeError as error:
            reasons += [r for r in error.reasons if r not in reasons]
    if reasons:
        raise RecipeError(*reasons)
    stored = [lp for lp in layers if lp is not None]
    reasons = _across(stored, spec) + unused(scoped, layers, spec)
    if reasons:
        raise RecipeError(*reasons)
    recompute = any(not lp.k.stores for lp in stored)
    groups = () if recompute else _groups(stored, pages)
    return Plan(recipe, spec, tuple(layers), groups, recompute)


def _across(stored: list[LayerPlan], spec: ModelSpec) -> list[str]:
    """Reasons that no layer has by itself."""
    reasons = []
    recomputing = [lp for lp in stored if not lp.k.stores]
    if recomputing and len(recomputing) < len(stored):
        reasons.append("'none' works for all layers or for no layer; write it without @")
    if recomputing and any(layer.kind == "state" for layer in spec.layers):
        reasons.append("'none' cannot recompute layers that keep a state; write fp16 instead")
    shared = {layer.source for layer in spec.layers if layer.kind == "shared"}
    evicting = [lp for lp in stored if lp.evicting and lp.index in shared]
    if evicting:
        reasons.append(
            f"{evicting[0].evicting} cannot choose tokens for layer {evicting[0].index}, whose "
            "cache other layers share; scope it to other layers with @"
        )
    return reasons


def _layers(placed: tuple[Stage, Scope], spec: ModelSpec, reasons: list[str]) -> frozenset[int]:
    try:
        return placed[1].layers(len(spec.layers))
    except ValueError as error:
        reasons.append(f"{format_placed(placed)}: {error}")
        return frozenset()


def _pick(stages: list[tuple[Stage, Scope]], slot: Slot) -> list[Stage]:
    """The stages of a slot on one layer: scoped ones replace those for every layer."""
    here = [p for p in stages if p[0].slot == slot]
    return [s for s, scope in here if scope.ranges] or [s for s, _ in here]


def _names(stages: Iterable[Stage]) -> str:
    return " and ".join(repr(str(s)) for s in stages)


def _one(stages: list[Stage], what: str, reasons: list[str]) -> Stage | None:
    if len(stages) > 1:
        names = _names(dict.fromkeys(stages))
        verb = "all set" if " and " in names else "sets twice"
        reasons.append(f"{names} {verb} the {what} of a layer; keep one of them")
    return stages[0] if stages else None


def _resolve_layer(
    index: int, layer: LayerSpec, stages: list[tuple[Stage, Scope]]
) -> tuple[LayerPlan | None, int]:
    inert = [s for s, _ in stages if s.slot in NOT_YET]
    reasons = [f"{str(s)!r} has no effect in this version; remove it" for s in inert]
    if layer.kind == "chunked":
        reasons.append("chunked attention layers cannot be run yet; use a model without them")
    codec = _one(_pick(stages, Slot.CODEC), "codec", reasons) or named(DEFAULT_CODEC)
    page = _one(_pick(stages, Slot.LAYOUT), "page size", reasons)
    retention = _pick(stages, Slot.RETENTION)
    kept, evicting = _retention(layer, retention, reasons)
    replaced = [s for s, _ in stages if s.slot == Slot.RETENTION and s not in retention]
    if replaced and reasons:
        reasons.append(
            f"stages with @ replace those without, so {_names(replaced)} needs the same @"
        )
    if not layer.caches_tokens:
        if reasons:
            raise RecipeError(*reasons)
        return None, 0
    assert isinstance(codec, Codec)
    reasons += [r for slot in Slot for s in _pick(stages, slot) for r in s.check(layer)]
    if not codec.stores and (retention or page):
        extra = _names([*retention, *([page] if page else [])])
        reasons.append(f"'none' stores nothing, so {extra} cannot apply; write one or the other")
    k = codec.bind(layer, "k")
    v = None if layer.kind == "latent" else codec.bind(layer, "v")
    plan = LayerPlan(index, layer, k, v, kept, evicting)
    reasons += _conflicts(plan)
    tokens = _page_tokens(plan, page, reasons)
    if reasons:
        raise RecipeError(*dict.fromkeys(reasons))
    return plan, tokens


def _retention(
    layer: LayerSpec, stages: list[Stage], reasons: list[str]
) -> tuple[Kept, Evicting | None]:
    evicting = [s for s in stages if isinstance(s, Evicting)]
    positional = [s for s in stages if isinstance(s, Positional)]
    if len(evicting) > 1 or (evicting and positional):
        names = _names([*evicting, *positional])
        reasons.append(f"{names} cannot share a layer: each decides what stays; keep one")
    for kind in dict.fromkeys(type(s) for s in positional):
        alike = [s for s in positional if type(s) is kind]
        if len(alike) > 1:
            reasons.append(f"{_names(alike)} say the same thing twice; keep one of them")
    for stage in stages:
        if not isinstance(stage, Evicting | Positional):
            reasons.append(f"{str(stage)!r} must derive from Positional or Evicting")
    # A layer that slides by design never sees past its own window, whatever the recipe keeps.
    own = Kept(layer.window) if layer.kind in ("sliding", "latent") else Kept()
    if evicting and own.window is None:
        return own, evicting[0]
    sinks = max((s.first for s in positional), default=0)
    window = max((s.last for s in positional), default=0)
    if not positional or (own.window is not None and sinks + window > own.window):
        return own, None
    if not window:
        reasons.append(f"{_names(positional)} alone keeps nothing of the present; add window:N")
        return own, None
    in_cache = any(getattr(s, "in_cache", False) for s in positional)
    if sinks and own.window is not None and not in_cache:
        reasons.append(
            f"{_names(s for s in positional if s.first)} would be scored at distances beyond the "
            f"{own.window} tokens that the layer was made for; write positions=cache, or scope "
            "all that keeps tokens to layers that do not slide with @"
        )
    return Kept(window, sinks, in_cache), None


def _conflicts(plan: LayerPlan) -> list[str]:
    reasons = []
    for codec in plan.codecs:
        held = codec.close_tokens + codec.residual
        window = plan.kept.window
        if not codec.immediate and window is not None and window < held:
            reasons.append(
                f"{codec} holds up to {held} tokens in full precision, more than the {window} "
                f"that stay; write a window of at least {held} or another codec"
            )
        if plan.evicting and not codec.immediate:
            reasons.append(
                f"{plan.evicting} drops single tokens and {codec} codes them late or in groups; "
                f"write int8 or int4 instead of {codec}"
            )
    return reasons


def _page_tokens(plan: LayerPlan, page: Stage | None, reasons: list[str]) -> int:
    unit = math.lcm(*(p.tokens for c in plan.codecs for p in c.planes(plan.spec.k_dim).values()), 1)
    if page is None:
        return math.lcm(DEFAULT_PAGE, unit)
    assert isinstance(page, Layout)
    if page.tokens % unit:
        reasons.append(
            f"page:{page.tokens} cannot hold whole groups of {unit} tokens; "
            f"write page:{-(-page.tokens // unit) * unit} or leave it out"
        )
    return page.tokens


def _groups(layers: list[LayerPlan], pages: dict[int, int]) -> tuple[Group, ...]:
    """Layers that keep the same tokens and close them together share a table."""
    classes: dict[Hashable, list[tuple[LayerPlan, int | None]]] = {}
    for lp in layers:
        closing = tuple((c.close_tokens, c.residual) for c in lp.codecs if not c.immediate)
        if closing:
            closing = tuple((c.close_tokens, c.residual) for c in lp.codecs)
        shared = (lp.kept, closing, pages[lp.index])
        if lp.evicting is None:
            classes.setdefault(shared, []).append((lp, None))
        else:
            for h in range(lp.spec.kv_heads):
                classes[(lp.index, h)] = [(lp, h)]
    groups: list[Group] = []
    for members in classes.values():
        first, head = members[0]
        layer_plans = tuple(lp for lp, _ in members)
        groups.append(_group(len(groups), layer_plans, head, pages[first.index]))
    return tuple(groups)


def _group(index: int, layers: tuple[LayerPlan, ...], head: int | None, tokens: int) -> Group:
    return Group(
        index,
        layers,
        main=page_format(tokens, _streams(layers, head)),
        tail=_tail_format(layers, tokens) if layers[0].has_tail else None,
        head=head,
    )


def _streams(layers: tuple[LayerPlan, ...], head: int | None) -> list[StreamLayout]:
    streams = []
    for lp in layers:
        heads = lp.spec.kv_heads if head is None else 1
        streams.append(StreamLayout(lp.index, "k", heads, lp.spec.k_dim, lp.k))
        if lp.v is not None:
            streams.append(StreamLayout(lp.index, "v", heads, lp.spec.v_dim, lp.v))
    return streams


def _tail_format(layers: tuple[LayerPlan, ...], tokens: int) -> PageFormat:
    streams = [s for s in _streams(layers, None) if not s.codec.immediate]
    return page_format(tokens, [replace(s, codec=tail_codec(s.codec)) for s in streams])


def tail_codec(codec: Codec) -> Codec:
    """The float codec that holds the tokens which ``codec`` has not closed yet."""
    held = named(codec.tail)
    assert isinstance(held, Codec)
    return held
