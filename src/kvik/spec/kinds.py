"""Which kind each layer of a configuration has, by the rule of its family.

Every function takes the fields and the number of layers and gives one kind a layer: ``full``,
``sliding``, ``chunked``, ``state`` (a recurrence or convolution) or ``none`` (feed-forward only).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from kvik.spec.fields import Fields
from kvik.spec.names import WINDOW, pick

Kind = Literal["full", "sliding", "chunked", "state", "none"]
Kinds = Callable[[Fields, int], list[Kind]]

NAMES: dict[str, Kind] = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "minimax_m3_sparse": "full",
    "sliding_attention": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "state",
    "mamba": "state",
    "conv": "state",
    "mlp": "none",
    "moe": "none",
}
LETTERS: dict[str, Kind] = {"M": "state", "*": "full", "-": "none", "E": "none"}


def listed(fields: Fields, count: int, name: str = "layer_types") -> list[Kind] | None:
    """The kinds that a list in the configuration gives; None without such a list."""
    if name not in fields:
        return None
    kinds = fields.sequence(name, count)
    for kind in kinds:
        if not isinstance(kind, str) or kind not in NAMES:
            raise fields.wrong(name, f"a list of {', '.join(NAMES)}")
    return [NAMES[kind] for kind in kinds]


def full(fields: Fields, count: int) -> list[Kind]:
    """Every layer sees everything; a list of other kinds or a window would contradict that."""
    kinds = listed(fields, count)
    if kinds is not None:
        return kinds
    if fields.get("use_sliding_window") is not False:
        fields.refuse("sliding_window")
    return ["full"] * count


def mllama(fields: Fields, count: int) -> list[Kind]:
    """Layers of ``cross_attention_layers`` look at an image alone and keep no token of the text."""
    crossing: set[int] = set()
    if "cross_attention_layers" in fields:
        crossing = set(fields.numbers("cross_attention_layers", 0, count - 1))
    return ["none" if index in crossing else "full" for index in range(count)]


def heedless(fields: Fields, count: int) -> list[Kind]:
    """Every layer sees everything, whatever the configuration says of windows."""
    return ["full"] * count


def windowed(fields: Fields, count: int) -> list[Kind]:
    """One window on every layer, where the configuration has one (Mistral, Phi-3)."""
    every: list[Kind] = ["sliding" if pick(fields, WINDOW) in fields else "full"] * count
    return _harmless(fields, listed(fields, count) or every)


def _harmless(fields: Fields, kinds: list[Kind]) -> list[Kind]:
    """A window as wide as the context drops nothing: such layers are full."""
    context = fields.get("max_position_embeddings")
    if "sliding" in kinds and type(context) is int:
        window = fields.integer(pick(fields, WINDOW))
        if window >= context:
            return ["full" if kind == "sliding" else kind for kind in kinds]
    return kinds


def qwen(fields: Fields, count: int) -> list[Kind]:
    """A window only where ``use_sliding_window`` is true, from layer ``max_window_layers`` on."""
    if not fields.flag("use_sliding_window", False) or "sliding_window" not in fields:
        return ["full"] * count
    kinds = listed(fields, count)
    if kinds is not None:
        return _harmless(fields, kinds)
    first = fields.whole("max_window_layers")
    return _harmless(fields, ["sliding" if i >= first else "full" for i in range(count)])


def smollm3(fields: Fields, count: int) -> list[Kind]:
    """With ``use_sliding_window``, a window on the layers without rotary embeddings."""
    kinds = listed(fields, count)
    if kinds is not None:
        return kinds
    if not fields.flag("use_sliding_window", False) or "sliding_window" not in fields:
        return ["full"] * count
    return ["full" if turns else "sliding" for turns in rotary(fields, count)]


def rotary(fields: Fields, count: int) -> list[bool]:
    """SmolLM3: which layers have rotary embeddings; every fourth has none unless listed."""
    if "no_rope_layers" in fields:
        flags = fields.numbers("no_rope_layers", 0, 1)
        if len(flags) < count:
            raise fields.wrong("no_rope_layers", "a list with an entry for each layer")
        return [bool(flag) for flag in flags[:count]]
    step = fields.integer("no_rope_layer_interval", 4)
    return [(index + 1) % step != 0 for index in range(count)]


def every(period: int, name: str = "sliding_window_pattern", kind: Kind = "sliding") -> Kinds:
    """Of ``period`` layers the last sees everything; ``name`` may hold another period."""

    def kinds(fields: Fields, count: int) -> list[Kind]:
        known = listed(fields, count)
        if known is not None:
            return known
        step = fields.integer(name, period)
        return [kind if (index + 1) % step else "full" for index in range(count)]

    return kinds


def exaone(fields: Fields, count: int) -> list[Kind]:
    """``sliding_window_pattern`` is a period, letters such as LLLG, or absent without a window."""
    known = listed(fields, count)
    if known is not None:
        return known
    if "sliding_window" not in fields:
        return ["full"] * count
    pattern = fields.get("sliding_window_pattern")
    if not isinstance(pattern, str):
        return every(4)(fields, count)
    if not pattern or set(pattern) - {"L", "G"}:
        raise fields.wrong("sliding_window_pattern", "a number, or letters L and G")
    kinds = [pattern[index % len(pattern)] for index in range(count)]
    return ["sliding" if k == "L" and i < count - 1 else "full" for i, k in enumerate(kinds)]


def llama4(fields: Fields, count: int) -> list[Kind]:
    """Layers with rotary embeddings attend in chunks, those without see everything."""
    known = listed(fields, count)
    if known is not None:
        return known
    if "attention_chunk_size" not in fields:
        return ["full"] * count
    if not fields.get("no_rope_layers"):
        return every(4, "no_rope_layer_interval", "chunked")(fields, count)
    rotary = fields.sequence("no_rope_layers", count)
    return ["chunked" if rotates else "full" for rotates in rotary]


def mimo(fields: Fields, count: int) -> list[Kind]:
    """``hybrid_layer_pattern`` marks the layers with a window by 1."""
    return flagged(fields, count, "hybrid_layer_pattern", "sliding", "full")


def flagged(fields: Fields, count: int, name: str, one: Kind, zero: Kind) -> list[Kind]:
    """A list of ones and zeros as kinds."""
    flags = fields.sequence(name, count)
    if any(flag not in (0, 1) for flag in flags):
        raise fields.wrong(name, "a list of 0 and 1")
    return [one if flag else zero for flag in flags]


def minimax(fields: Fields, count: int) -> list[Kind]:
    """``attn_type_list`` marks softmax attention by 1, lightning attention by 0."""
    known = listed(fields, count)
    return flagged(fields, count, "attn_type_list", "full", "state") if known is None else known


def jamba(fields: Fields, count: int) -> list[Kind]:
    """Attention every ``attn_layer_period`` layers from ``attn_layer_offset`` on, Mamba between."""
    known = listed(fields, count, "layers_block_type") or listed(fields, count)
    if known is not None:
        return known
    period = fields.integer("attn_layer_period")
    offset = fields.whole("attn_layer_offset")
    return ["full" if index % period == offset else "state" for index in range(count)]


def bamba(fields: Fields, count: int) -> list[Kind]:
    """Attention in the layers that ``attn_layer_indices`` names."""
    known = listed(fields, count, "layers_block_type") or listed(fields, count)
    return indexed(fields, count, "attn_layer_indices", 0) if known is None else known


def lfm2(fields: Fields, count: int) -> list[Kind]:
    """Attention in the layers that ``full_attn_idxs`` names, short convolutions elsewhere."""
    known = listed(fields, count)
    return indexed(fields, count, "full_attn_idxs", 0) if known is None else known


def indexed(fields: Fields, count: int, name: str, first: int) -> list[Kind]:
    """Attention in the layers whose numbers, counted from ``first``, are in a list."""
    if name not in fields:
        raise fields.fault(f"the field {fields.label(name)} is missing")
    found = fields.numbers(name, first, count - 1 + first)
    return ["full" if index + first in found else "state" for index in range(count)]


def qwen_next(fields: Fields, count: int) -> list[Kind]:
    """Attention every ``full_attention_interval`` layers, a gated delta net between."""
    return every(4, "full_attention_interval", "state")(fields, count)


def nemotron_h(fields: Fields, count: int) -> list[Kind]:
    """A letter a layer: M for Mamba, * for attention, - and E for feed-forward blocks."""
    known = listed(fields, count, "layers_block_type")
    if known is not None:
        return known
    pattern = fields.text("hybrid_override_pattern")
    if len(pattern) != count or set(pattern) - set(LETTERS):
        raise fields.wrong("hybrid_override_pattern", f"{count} letters of {' '.join(LETTERS)}")
    return [LETTERS[letter] for letter in pattern]


def kimi_linear(fields: Fields, count: int) -> list[Kind]:
    """Attention in the layers, counted from 1, of ``linear_attn_config.full_attn_layers``."""
    known = listed(fields, count)
    if known is not None:
        return known
    return indexed(fields.sub("linear_attn_config"), count, "full_attn_layers", 1)


def recurrent(fields: Fields, count: int) -> list[Kind]:
    """No attention anywhere (Mamba)."""
    return ["state"] * count


def step3(fields: Fields, count: int) -> list[Kind]:
    """``layer_types`` may go on for the layers that predict further tokens."""
    kinds = fields.get("layer_types")
    if isinstance(kinds, list) and len(kinds) > count:
        fields = fields.at({"layer_types": kinds[:count]}, "")
    return listed(fields, count) or ["full"] * count
