"""The names that published configurations use for one and the same size."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from kvik.spec.fields import MAX_HEAD_DIM, MAX_LAYERS, MAX_SIZE, Fields

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model", "model_dim")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = (
    "num_key_value_heads",
    "n_head_kv",
    "num_kv_heads",
    "multi_query_group_num",
    "num_query_groups",
)
HEAD_DIM = ("head_dim", "hidden_size_per_head", "kv_channels", "attention_head_dim")
FFN = ("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim")
VOCAB = ("vocab_size", "padded_vocab_size", "n_vocab")
CONTEXT = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "model_max_length",
    "n_ctx",
)
WINDOW = ("sliding_window", "sliding_window_size", "window_size", "attention_window_size")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_PER_TOKEN = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_top_k",
    "moe_k",
)


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say of an unknown family: those with names like it, or where the list is."""
    close = difflib.get_close_matches(name[:80], list(known), n=3, cutoff=0.5)
    return f"known are for instance {', '.join(close)}" if close else "docs/models.md lists those"


def pick(fields: Fields, names: tuple[str, ...]) -> str:
    """The first of ``names`` that the fields have; else the first, for the error to name."""
    return next((name for name in names if name in fields), names[0])


def size(fields: Fields, names: tuple[str, ...], default: int | None = None) -> int:
    """The size under the first of ``names`` that is there."""
    return fields.integer(pick(fields, names), default)


def size_of(fields: Fields, names: tuple[str, ...], index: int, default: int | None = None) -> int:
    """The size that layer ``index`` has: one for all, or its entry in a list."""
    name = pick(fields, names)
    if not isinstance(fields.get(name), list):
        return fields.integer(name, default)
    listed = fields.numbers(name, 1, MAX_SIZE)
    if index >= len(listed):
        raise fields.wrong(name, "a list with an entry for each layer")
    return listed[index]


def only_size(fields: Fields, names: tuple[str, ...], default: int | None = None) -> int:
    """The size that all layers have, though each may be listed."""
    name = pick(fields, names)
    if isinstance(fields.get(name), list) and len(set(fields.numbers(name, 0, MAX_SIZE))) > 1:
        raise fields.wrong(name, "the same for all layers")
    return size_of(fields, names, 0, default)


def layer_count(fields: Fields) -> int:
    """Layers of the model; a list of their kinds says it where no number does."""
    kinds = fields.get("layers_block_type") or fields.get("layer_types")
    listed = len(kinds) if isinstance(kinds, list) else None
    return fields.integer(pick(fields, LAYERS), listed, most=MAX_LAYERS)


def head_dim(fields: Fields) -> int:
    """Channels of a head: said outright, or the width shared out."""
    name = pick(fields, HEAD_DIM)
    if name in fields:
        return fields.integer(name, most=MAX_HEAD_DIM)
    return shared_width(fields)


def shared_width(fields: Fields) -> int:
    """The model's width shared out among its heads, rounded down as engines do."""
    hidden, heads = size(fields, HIDDEN), size(fields, HEADS)
    if not 1 <= hidden // heads <= MAX_HEAD_DIM:
        raise fields.fault(f"{heads} attention heads cannot share a width of {hidden}")
    return hidden // heads


def kv_heads(fields: Fields) -> int:
    """KV heads where the configuration has no rule of its own; all heads where it says nothing."""
    return size(fields, KV_HEADS, size(fields, HEADS))


def context(fields: Fields) -> int:
    """Trained context in tokens; 0 where the configuration does not say."""
    name = pick(fields, CONTEXT)
    return fields.integer(name) if name in fields else 0
