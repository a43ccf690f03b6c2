"""What a configuration says and transformers' model of the family does not compute, refused.

The planner is lenient: it reads a field under any of its names and for any family. A decoder that
did so would answer differently from the model as its authors ran it, and nobody would see.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvik.spec.fields import Fields
from kvik.spec.model import LayerSpec
from kvik.spec.names import HEAD_DIM, HEADS, KV_HEADS, LAYERS, WINDOW, pick

FULL, SLIDING = "full_attention", "sliding_attention"


def refuse_unmasked(fields: Fields) -> None:
    """Tokens see only those before them; transformers takes a null for false here."""
    if fields.unless_null("is_causal", True).get("is_causal") is not True:
        raise fields.wrong("is_causal", "true or absent")


def refuse_other_names(fields: Fields) -> None:
    """Sizes under names, and kinds of layers, that only other families have."""
    for names in (LAYERS, HEADS, KV_HEADS, HEAD_DIM, WINDOW):
        found = pick(fields, names)
        if found != names[0] and found in fields:
            raise fields.wrong(found, f"absent, and what it says be in {names[0]}")
    kinds = fields.get("layer_types")
    if isinstance(kinds, list) and any(kind not in (FULL, SLIDING) for kind in kinds):
        raise fields.wrong("layer_types", f"a list of {FULL} and {SLIDING}")


def refuse_kinds(
    fields: Fields, layers: Sequence[LayerSpec], *, heeded: bool, windowed: bool
) -> None:
    """Kinds in ``layer_types`` that differ from those that transformers computes.

    A family that does not heed the list has layers that are all alike: those of a ``windowed`` one
    have the window that ``sliding_window`` gives, others see everything.
    """
    if "layer_types" not in fields:
        return
    kinds, window = fields.sequence("layer_types", len(layers)), fields.get("sliding_window")
    # A window as wide as the context drops nothing: such layers are full.
    wide = type(window) is int and window >= fields.integer("max_position_embeddings")
    alike = "sliding" if windowed and window is not None and not wide else "full"
    if not heeded and any(layer.kind != alike for layer in layers):
        raise fields.wrong("layer_types", f"{alike}_attention for every layer, or absent")
    full = [layer.kind == "full" for layer in layers]
    if not wide and any(each and kind == SLIDING for each, kind in zip(full, kinds, strict=True)):
        raise fields.wrong("layer_types", f"without {SLIDING}, as use_sliding_window is not true")
