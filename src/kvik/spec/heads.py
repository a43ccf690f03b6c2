"""The K/V rows of one layer, by the rule of its family: ``(fields, kind, index) -> LayerSpec``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvik.spec.fields import MAX_HEAD_DIM, Fields
from kvik.spec.model import Extra, LayerKind, LayerSpec, StatePart
from kvik.spec.names import HEADS, WINDOW, head_dim, kv_heads, shared_width, size

Layer = Callable[[Fields, LayerKind, int], LayerSpec]


def grouped(fields: Fields, kind: LayerKind, index: int) -> LayerSpec:
    """Multi-head, grouped-query or multi-query attention."""
    return rows(fields, kind, kv=kv_heads(fields))


def rows(
    fields: Fields,
    kind: LayerKind,
    *,
    kv: int,
    heads: int | None = None,
    dims: tuple[int, int] | None = None,
    **more: Any,
) -> LayerSpec:
    """A layer of ``kv`` heads; dimensions and window come from the fields unless given."""
    heads = size(fields, HEADS) if heads is None else heads
    if heads % kv:
        raise fields.fault(f"{heads} attention heads cannot share {kv} KV heads evenly")
    if dims is None:
        dim = head_dim(fields)
        dims = dim, fields.integer("v_head_dim", dim, most=MAX_HEAD_DIM)
    window = None
    if kind == "sliding":
        window = size(fields, WINDOW)
    elif kind == "chunked":
        window = fields.integer("attention_chunk_size")
    return LayerSpec(kind, heads, kv, *dims, window=window, **more)


def every_head(fields: Fields, kind: LayerKind, index: int) -> LayerSpec:
    """Multi-head attention: a KV head for each head."""
    return rows(fields, kind, kv=size(fields, HEADS))


def falcon(fields: Fields, kind: LayerKind, index: int) -> LayerSpec:
    """One KV head (``multi_query``), unless the decoder is of the newer sort."""
    if fields.flag("new_decoder_architecture", False):
        return rows(fields, kind, kv=size(fields, ("num_kv_heads", "n_head_kv")))
    if fields.flag("multi_query", True):
        return rows(fields, kind, kv=1)
    return rows(fields, kind, kv=kv_heads(fields))


def chatglm(fields: Fields, kind: LayerKind, index: int) -> LayerSpec:
    """KV heads only where ``multi_query_attention`` is true."""
    shared = fields.flag("multi_query_attention", False)
    kv = fields.integer("multi_query_group_num") if shared else size(fields, HEADS)
    return rows(fields, kind, kv=kv)


def inner_config(name: str) -> Layer:
    """KV heads in an object of their own (MPT, DBRX); all heads without it."""

    def layer(fields: Fields, kind: LayerKind, index: int) -> LayerSpec:
        return rows(fields, kind, kv=fields.sub(name).integer("kv_n_heads", size(fields, HEADS)))

    return layer


def opt(fields: Fields, kind: LayerKind, index: int) -> LayerSpec:
    """OPT and its like: the width shared out among heads that all keep K and V."""
    dim = shared_width(fields)
    return rows(fields, kind, kv=size(fields, HEADS), dims=(dim, dim))


def blocks(fields: Fields, kind: LayerKind, index: int) -> LayerSpec:
    """Nemotron-NAS: each block says how many heads share a KV head, or that it has none."""
    every = fields.get("block_configs")
    entry = every[index] if isinstance(every, list) and index < len(every) else None
    attention = entry.get("attention") if isinstance(entry, dict) else None
    if not isinstance(attention, dict):
        raise fields.fault(f"the field block_configs[{index}].attention is missing")
    block = fields.at(attention, f"block_configs[{index}].attention.")
    if block.flag("no_op", False) or block.flag("replace_with_linear", False):
        return LayerSpec("state", 0, 0, 0, 0)
    heads = size(fields, HEADS)
    share = block.integer("n_heads_in_group")
    if heads % share:
        raise block.wrong("n_heads_in_group", f"a divisor of {heads} heads")
    window = block.get("window_length")
    if window is not None:
        dim = head_dim(fields)
        return LayerSpec(
            "sliding", heads, heads // share, dim, dim, window=block.integer("window_length")
        )
    return rows(fields, kind, kv=heads // share)


def gemma4(fields: Fields, kind: LayerKind, index: int) -> LayerSpec:
    """Layers that see everything have wider heads, and may have fewer of them."""
    kv, dim = kv_heads(fields), head_dim(fields)
    if kind == "full":
        dim = fields.integer("global_head_dim", 512, most=MAX_HEAD_DIM)
        if fields.flag("attention_k_eq_v", False):
            kv = fields.integer("num_global_key_value_heads", kv)
    return rows(fields, kind, kv=kv, dims=(dim, dim))


def mimo(fields: Fields, kind: LayerKind, index: int) -> LayerSpec:
    """Layers with a window have sizes of their own under names that start with ``swa_``."""
    if kind != "sliding":
        return grouped(fields, kind, index)
    k = fields.integer("swa_head_dim", most=MAX_HEAD_DIM)
    v = fields.integer("swa_v_head_dim", most=MAX_HEAD_DIM)
    return rows(
        fields,
        kind,
        heads=fields.integer("swa_num_attention_heads"),
        kv=fields.integer("swa_num_key_value_heads"),
        dims=(k, v),
    )


def step3(fields: Fields, kind: LayerKind, index: int) -> LayerSpec:
    """Layers with a window may have another number of heads."""
    if kind == "sliding" and "attention_other_setting" in fields:
        other = fields.sub("attention_other_setting")
        heads = size(other, HEADS, size(fields, HEADS))
        dim = other.integer("head_dim", head_dim(fields), most=MAX_HEAD_DIM)
        kv = size(other, ("num_attention_groups", "num_key_value_heads"), _step3_kv(fields))
        return rows(fields, kind, heads=heads, kv=kv, dims=(dim, dim))
    return rows(fields, kind, kv=_step3_kv(fields))


def _step3_kv(fields: Fields) -> int:
    return size(fields, ("num_key_value_heads", "num_attention_groups"), size(fields, HEADS))


def latent(fields: Fields, kind: LayerKind, index: int) -> LayerSpec:
    """MLA (arXiv 2405.04434): one latent with the rotary part behind it."""
    rank, rope = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim")
    plain, value = fields.integer("qk_nope_head_dim"), fields.integer("v_head_dim")
    if max(rank, rope, plain, value) > MAX_HEAD_DIM:
        raise fields.fault(f"the latent's dimensions must be at most {MAX_HEAD_DIM}")
    return LayerSpec(
        "latent",
        size(fields, HEADS),
        1,
        rank + rope,
        rank,
        rope_dim=rope,
        expanded=(plain + rope, value),
    )


def minicpm3(fields: Fields, kind: LayerKind, index: int) -> LayerSpec:
    """MLA whose files may leave out the width of V: the model's, shared out among the heads."""
    return latent(fields.with_default("v_head_dim", shared_width(fields)), kind, index)


def indexed(fields: Fields, kind: LayerKind, index: int) -> LayerSpec:
    """MLA with DeepSeek's sparse attention; where ``indexer_types`` says so, only some layers
    have an indexer with keys of its own.
    """
    layer = latent(fields, kind, index)
    if "indexer_types" in fields:
        kinds = fields.get("indexer_types")
        if not isinstance(kinds, list) or len(kinds) <= index:
            raise fields.wrong("indexer_types", "a list with an entry for each layer")
        if kinds[index] not in ("full", "shared"):
            raise fields.wrong("indexer_types", "a list of full and shared")
        if kinds[index] == "shared":
            return layer
    return _with(layer, Extra("indexer keys", fields.integer("index_head_dim")))


def minimax_m3(fields: Fields, kind: LayerKind, index: int) -> LayerSpec:
    """Sparse layers keep one index key for all heads."""
    layer = grouped(fields, "full", index)
    if "sparse_attention_config" not in fields:
        raise fields.fault(f"the field {fields.label('sparse_attention_config')} is missing")
    sparse = fields.sub("sparse_attention_config")
    marks = sparse.get("sparse_attention_freq")
    if not isinstance(marks, list) or len(marks) <= index or marks[index] not in (0, 1):
        raise sparse.wrong("sparse_attention_freq", "a list of 0 and 1 for each layer")
    if not marks[index] or not sparse.flag("use_sparse_attention", True):
        return layer
    return _with(layer, Extra("index keys", sparse.integer("sparse_index_dim")))


def deepseek_v4(fields: Fields, kind: LayerKind, index: int) -> LayerSpec:
    """One row that is K and V at once, kept for a window, and compressed rows of all before.

    A ratio of 4 compresses overlapping groups and has an indexer; 0 compresses nothing. The
    compressor holds values and scores of the groups that are still open, in float32.
    """
    dim, rope = fields.integer("head_dim", most=MAX_HEAD_DIM), fields.integer("qk_rope_head_dim")
    ratios = fields.get("compress_ratios")
    if not isinstance(ratios, list) or len(ratios) <= index or type(ratios[index]) is not int:
        raise fields.wrong("compress_ratios", "a list with a whole number for each layer")
    ratio, heads = ratios[index], size(fields, HEADS)
    if ratio < 0:
        raise fields.wrong("compress_ratios", "a list of whole numbers from 0 on")
    window = size(fields, WINDOW)
    layer = LayerSpec("latent", heads, 1, dim, dim, window=window, rope_dim=rope)
    if not ratio:
        return layer
    extras, spans = [Extra("compressed rows", dim, ratio)], 1 + (ratio == 4)
    states = [_compressor(spans, ratio, dim)]
    if ratio == 4:
        inner = fields.integer("index_head_dim")
        extras.append(Extra("indexer keys", inner, ratio))
        states.append(_compressor(spans, ratio, inner))
    return _with(layer, *extras, states=tuple(states))


def _compressor(spans: int, ratio: int, dim: int) -> StatePart:
    return StatePart("compressor", (2, spans * ratio, spans * dim), 4)


def whisper(fields: Fields, kind: LayerKind, index: int) -> LayerSpec:
    """The decoder's own cache, and K and V of the encoder's output."""
    heads, dim = size(fields, HEADS), shared_width(fields)
    cross = StatePart("cross", (fields.integer("max_source_positions"), heads, 2 * dim), 2)
    return LayerSpec("full", heads, heads, dim, dim, states=(cross,))


def _with(
    layer: LayerSpec, *extra: Extra, states: tuple[StatePart, ...] | None = None
) -> LayerSpec:
    return replace(layer, extra=extra, states=layer.states if states is None else states)
