"""Pure data: the bytes of what a cache holds, before any engine rounds or pads.

Fractions keep streams exact that store a row for several tokens, or a scale for several codes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from kvik.recipe import Codec, LayerPlan, Plan, Recipe
from kvik.recipe.plan import clip
from kvik.recipe.resolve import tail_codec
from kvik.recipe.retention import Ranges
from kvik.spec.model import LayerSpec, ModelSpec

FAR = 1 << 32  # a length beyond every window and budget


@dataclass(frozen=True)
class LayerData:
    """Bytes of one layer of one sequence.

    ``per_token`` counts a token inside every window, ``growth`` one past all of them.
    """

    index: int
    kind: str
    nbytes: int
    per_token: Fraction
    growth: Fraction
    state: int
    formula: str


def plannable(spec: ModelSpec) -> ModelSpec:
    """``spec`` with chunked layers as sliding ones: both hold at most their window."""
    layers = tuple(
        replace(layer, kind="sliding") if layer.kind == "chunked" else layer
        for layer in spec.layers
    )
    return replace(spec, layers=layers)


def resolve(recipe: Recipe, spec: ModelSpec) -> Plan:
    """The plan of any model that can be described, whether or not kvik runs it."""
    return recipe.resolve(plannable(spec))


def layer_data(plan: Plan, spec: ModelSpec, tokens: int) -> list[LayerData]:
    """Every layer of ``spec`` under ``plan`` (resolved from it) after ``tokens`` tokens."""
    found: list[LayerData] = []
    alike: dict[LayerPlan, LayerData] = {}
    for index, (layer, lp) in enumerate(zip(spec.layers, plan.layers, strict=True)):
        if lp is None:
            words = f"reads layer {layer.source}" if layer.kind == "shared" else "keeps no tokens"
            found.append(_layer(index, layer, 0, Fraction(), Fraction(), words))
            continue
        # Most models have two kinds of layers; only evicting policies look at the number.
        key = lp if lp.evicting else replace(lp, index=0)
        if key not in alike:
            alike[key] = _stored(lp, layer, tokens)
        found.append(replace(alike[key], index=index))
    return found


def _stored(lp: LayerPlan, layer: LayerSpec, tokens: int) -> LayerData:
    if not lp.k.stores:
        return _layer(lp.index, layer, 0, Fraction(), Fraction(), "computed anew for every token")
    step = _period(lp)
    far = FAR // step * step
    growth = Fraction(held_bytes(lp, far + step) - held_bytes(lp, far), step)
    held = held_bytes(lp, tokens)
    return _layer(lp.index, layer, held, token_bytes(lp), growth, _words(lp, tokens))


def _layer(
    index: int, spec: LayerSpec, nbytes: int, per_token: Fraction, growth: Fraction, words: str
) -> LayerData:
    if spec.state_bytes:
        parts = [
            f"{p.name} {' x '.join(map(str, p.shape))} x {p.item_bytes} B" for p in spec.states
        ]
        own = f"{spec.state_bytes:,} B for the sequence"
        words += f"; {own} ({', '.join(parts)})" if parts else f"; {own}"
    return LayerData(index, spec.kind, nbytes, per_token, growth, spec.state_bytes, words)


def row_bytes(codec: Codec, dim: int) -> Fraction:
    """Bytes that ``codec`` takes for one token of one head of ``dim`` channels."""
    planes = codec.planes(dim).values()
    return sum((Fraction(p.unit_bytes, p.tokens) for p in planes), Fraction())


def _streams(lp: LayerPlan) -> list[tuple[Codec, int, int]]:
    """Codec, heads and channels of the stored streams of K and V."""
    streams = [(lp.k, lp.spec.kv_heads, lp.spec.k_dim)]
    return streams if lp.v is None else [*streams, (lp.v, lp.spec.kv_heads, lp.spec.v_dim)]


def side_codec(lp: LayerPlan) -> Codec:
    """What codes the layer's side streams: K's codec, or floats where that waits for a group."""
    return lp.k if lp.k.immediate else tail_codec(lp.k)


def token_bytes(lp: LayerPlan) -> Fraction:
    """Bytes of one coded token."""
    rows = sum((heads * row_bytes(codec, dim) for codec, heads, dim in _streams(lp)), Fraction())
    sides = (row_bytes(side_codec(lp), e.dim) / e.ratio for e in lp.spec.extra)
    return rows + sum(sides, Fraction())


def side_bytes(lp: LayerPlan, tokens: int) -> int:
    """Bytes of the side streams after ``tokens`` tokens; they have no window."""
    codec = side_codec(lp)
    return math.ceil(sum(e.rows(tokens) * row_bytes(codec, e.dim) for e in lp.spec.extra))


def held_bytes(lp: LayerPlan, tokens: int) -> int:
    """Bytes of a layer after ``tokens`` tokens: codes, and what still waits in full precision."""
    total = side_bytes(lp, tokens)
    if lp.evicting is not None:
        for head in range(lp.spec.kv_heads):
            stored = lp.evicting.stored(tokens, lp.index, head)
            total += math.ceil(sum(stored * row_bytes(c, dim) for c, _, dim in _streams(lp)))
        return total
    ranges = _kept(lp, tokens)
    waiting = min(c.closed(tokens) for c in lp.codecs) if lp.has_tail else tokens
    for codec, heads, dim in _streams(lp):
        coded = _count(clip(ranges, 0, codec.closed(tokens)))
        group = codec.close_tokens
        total += math.ceil(heads * -(-coded // group) * group * row_bytes(codec, dim))
        if not codec.immediate:
            held = _count(clip(ranges, waiting, tokens))
            total += math.ceil(heads * held * row_bytes(tail_codec(codec), dim))
    return total


def _kept(lp: LayerPlan, tokens: int) -> Ranges:
    """Tokens that the newest query sees, itself included."""
    kept = lp.kept
    if kept.window is None or tokens <= kept.window + kept.sinks:
        return [(0, tokens)] if tokens else []
    newest = (tokens - kept.window, tokens)
    return [(0, kept.sinks), newest] if kept.sinks else [newest]


def _count(ranges: Ranges) -> int:
    return sum(stop - start for start, stop in ranges)


def _period(lp: LayerPlan) -> int:
    """After so many further tokens a layer holds what it held, or grew by a whole multiple."""
    spans = [c.close_tokens for c in lp.codecs] + [e.ratio for e in lp.spec.extra]
    spans += [p.tokens for c, _, dim in _streams(lp) for p in c.planes(dim).values()]
    if lp.evicting is not None:
        spans.append(lp.evicting.interval * 1000)
    return math.lcm(*spans)


def _words(lp: LayerPlan, tokens: int) -> str:
    spec = lp.spec
    if spec.kind == "latent":
        what = f"one row of {spec.k_dim} for all heads"
    elif spec.k_dim == spec.v_dim:
        what = f"K and V of {spec.kv_heads} heads x {spec.k_dim}"
    else:
        what = f"{spec.kv_heads} heads x (K {spec.k_dim} + V {spec.v_dim})"
    coded = " / ".join(dict.fromkeys(str(c) for c in lp.codecs))
    rows = sum((heads * row_bytes(c, dim) for c, heads, dim in _streams(lp)), Fraction())
    words = f"{what} in {coded} = {number(rows)} B a token"
    if lp.evicting is not None:
        words += f"; what {lp.evicting} leaves of {tokens:,} tokens"
    else:
        held = _count(_kept(lp, tokens))
        if lp.kept.window is None:
            words += f"; x {held:,} tokens"
        else:
            bound = f"{lp.kept.window:,}" + (f" + {lp.kept.sinks:,} sinks" * bool(lp.kept.sinks))
            words += f"; x {held:,} of {tokens:,} tokens (window {bound})"
    for extra in spec.extra:
        each = f" for every {extra.ratio} tokens" if extra.ratio > 1 else " a token"
        words += f"; {extra.name}: a row of {extra.dim}{each}"
    return words


def number(value: Fraction) -> int | float:
    """An int where it is one, for JSON and print."""
    return value.numerator if value.denominator == 1 else float(value)


def total(values: Iterable[Fraction]) -> int | float:
    """The sum as a plain number."""
    return number(sum(values, Fraction()))
