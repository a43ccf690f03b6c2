"""ModelSpec for planning from the header of a GGUF file of any known architecture.

Keys of a layer may hold one number for all layers or a list with one for each. No KV heads means
that the layer keeps no K and V.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

from kvik.spec.fields import MAX_HEAD_DIM, MAX_LAYERS, Fields
from kvik.spec.gguf import Header, read_header
from kvik.spec.gguf_count import count_gguf
from kvik.spec.gguf_families import ARCHS, Arch
from kvik.spec.model import Extra, LayerSpec, ModelSpec, StatePart
from kvik.spec.names import nearest


def plan_from_gguf(path: Path) -> ModelSpec:
    """What can be planned from the file's header; SpecError names the key that is in the way."""
    header = read_header(path)
    general = Fields(header.metadata, str(path))
    name = general.text("general.architecture")
    if name not in ARCHS:
        raise general.fault(
            f"general.architecture is {name[:80]!r}, whose cache is not known here; "
            f"{nearest(name, ARCHS)}"
        )
    fields = Fields(header.metadata, str(path), f"{name}.")
    split = general.get("split.count") not in (None, 0, 1)
    embedding = header.tensors.get("token_embd.weight")
    tokens = header.metadata.get("tokenizer.ggml.tokens", ())
    listed = len(tokens) if hasattr(tokens, "__len__") else 0
    width = fields.get("feed_forward_length")
    return ModelSpec(
        name=general.text("general.name", path.stem),
        family=name,
        layers=_layers(fields, header, ARCHS[name]),
        context=fields.integer("context_length"),
        vocab=embedding.shape[0] if embedding else fields.integer("vocab_size", listed or None),
        hidden=fields.integer("embedding_length"),
        ffn=fields.integer("feed_forward_length") if type(width) is int and width else 0,
        tied="output.weight" not in header.tensors,
        params=None if split else count_gguf(header, fields),
        source=f"header of {path.name}",
        unwindowed=("llamacpp",) if ARCHS[name].unread_window else (),
    )


def _layers(fields: Fields, header: Header, arch: Arch) -> tuple[LayerSpec, ...]:
    count = fields.integer("block_count", most=MAX_LAYERS)
    further = fields.whole("nextn_predict_layers", 0)
    if further >= count:
        raise fields.wrong("nextn_predict_layers", f"less than the {count} layers")
    # Layers that predict further tokens come last and have no cache unless they are used.
    trunk = count - further
    slides = _slides(fields, arch, trunk, count)
    recurrent = _recurrent(fields, arch, trunk, count)
    layers = tuple(
        _layer(fields, header, arch, index, count, slides[index], recurrent[index])
        for index in range(trunk)
    )
    return _shared(fields, arch, layers)


def _slides(fields: Fields, arch: Arch, trunk: int, count: int) -> list[bool]:
    """Which layers have a window (or chunks)."""
    window, name = fields.get("attention.sliding_window"), "attention.sliding_window_pattern"
    if (not window and arch.window is None) or window == 0:
        return [False] * trunk
    if arch.unread_window and type(window) is int and window >= fields.integer("context_length"):
        return [False] * trunk  # it drops nothing
    if isinstance(fields.get(name), array):
        return [bool(value) for value in fields.sequence(name, count)][:trunk]
    if name not in fields and not arch.period:
        if "attention.compress_ratios" in fields:
            return [True] * trunk
        if arch.unread_window:
            return [True] * trunk
        raise fields.fault(f"the field {fields.label(name)} is missing: which layers slide?")
    period = fields.whole(name, arch.period)
    if not period:
        return [True] * trunk
    rest = 0 if arch.dense_first else period - 1
    return [index % period != rest for index in range(trunk)]


def _recurrent(fields: Fields, arch: Arch, trunk: int, count: int) -> list[bool]:
    """Which layers are a recurrence, a short convolution or nothing instead of attention."""
    if not arch.recurrent or arch.parallel:
        return [False] * trunk
    listed = "attention.recurrent_layers"
    if isinstance(fields.get(listed), array):
        return [bool(value) for value in fields.sequence(listed, count)][:trunk]
    if arch.interval:
        period = fields.integer("full_attention_interval", arch.interval)
        return [(index + 1) % period != 0 for index in range(trunk)]
    if "attention.head_count_kv" not in fields:
        return [True] * trunk
    return [not _each(fields, "attention.head_count_kv", index, count) for index in range(trunk)]


def _each(
    fields: Fields,
    name: str,
    index: int,
    count: int,
    default: int | None = None,
    most: int = 1 << 31,
) -> int:
    """A number for all layers, or the one that a list has for layer ``index``."""
    value = fields.get(name)
    if isinstance(value, array):
        found = fields.sequence(name, count)[index]
        if type(found) is not int or not 0 <= found <= most:
            raise fields.wrong(name, f"a list of whole numbers from 0 to {most}")
        return found
    number = fields.whole(name, default)
    if number > most:
        raise fields.wrong(name, f"a whole number from 0 to {most}")
    return number


def _layer(
    fields: Fields,
    header: Header,
    arch: Arch,
    index: int,
    count: int,
    slides: bool,
    recurrent: bool,
) -> LayerSpec:
    if recurrent:
        return LayerSpec("state", 0, 0, 0, 0, states=_states(fields, header, arch, index))
    heads = _each(fields, "attention.head_count", index, count)
    kv = _each(fields, "attention.head_count_kv", index, count, default=heads)
    if not kv or not heads:
        return LayerSpec("state", 0, 0, 0, 0)
    if heads % kv:
        raise fields.fault(f"{heads} attention heads cannot share {kv} KV heads evenly")
    if "attention.compress_ratios" in fields:
        return _compressed(fields, index, count, heads)
    if "attention.key_length_mla" in fields:
        return _latent(fields, header, index, heads)
    k, v = _dims(fields, heads, slides)
    states = _states(fields, header, arch, index) if arch.parallel else ()
    if not slides:
        return LayerSpec("full", heads, kv, k, v, states=states)
    window = fields.integer("attention.sliding_window", arch.window)
    kind = "chunked" if arch.chunked else "sliding"
    return LayerSpec(kind, heads, kv, k, v, window=window, states=states)  # type: ignore[arg-type]


def _dims(fields: Fields, heads: int, slides: bool) -> tuple[int, int]:
    shared = fields.integer("embedding_length") // heads
    if not shared and "attention.key_length" not in fields:
        raise fields.fault(f"{heads} attention heads are more than the embedding_length")
    k = fields.integer("attention.key_length", shared, most=MAX_HEAD_DIM)
    v = fields.integer("attention.value_length", shared, most=MAX_HEAD_DIM)
    if slides:
        k = fields.integer("attention.key_length_swa", k, most=MAX_HEAD_DIM)
        v = fields.integer("attention.value_length_swa", v, most=MAX_HEAD_DIM)
    return k, v


def _latent(fields: Fields, header: Header, index: int, heads: int) -> LayerSpec:
    """MLA: the cache holds K alone, the latent with its rotary part."""
    rank = fields.integer("attention.kv_lora_rank", most=MAX_HEAD_DIM)
    rope = fields.integer("rope.dimension_count", most=MAX_HEAD_DIM)
    expanded = tuple(
        fields.integer(f"attention.{which}_length_mla", most=MAX_HEAD_DIM)
        for which in ("key", "value")
    )
    layer = LayerSpec(
        "latent", heads, 1, rank + rope, rank, rope_dim=rope, expanded=(expanded[0], expanded[1])
    )
    if "attention.indexer.key_length" not in fields or not _has_indexer(fields, header, index):
        return layer
    keys = fields.integer("attention.indexer.key_length", most=MAX_HEAD_DIM)
    return replace(layer, extra=(Extra("indexer keys", keys),))


def _has_indexer(fields: Fields, header: Header, index: int) -> bool:
    """Whether a layer has an indexer of its own: the file says it, or its tensors show it."""
    name = "attention.indexer.types"
    types = fields.get(name)
    if types is not None:
        if isinstance(types, str) or not hasattr(types, "__len__") or len(types) <= index:
            raise fields.wrong(name, "a list with an entry for each layer")
        if types[index] not in (0, 1, "full", "shared"):
            raise fields.wrong(name, "a list of truth values, or of full and shared")
        return types[index] in (1, "full")
    owners = {name.split(".")[1] for name in header.tensors if ".indexer." in name}
    return not owners or str(index) in owners


def _compressed(fields: Fields, index: int, count: int, heads: int) -> LayerSpec:
    """DeepSeek-V4: a window of rows that are K and V at once, and compressed rows before it."""
    dim = fields.integer("attention.key_length", most=MAX_HEAD_DIM)
    window = fields.integer("attention.sliding_window")
    rope = fields.integer("rope.dimension_count", most=MAX_HEAD_DIM)
    ratio = _each(fields, "attention.compress_ratios", index, count)
    layer = LayerSpec("latent", heads, 1, dim, dim, window=window, rope_dim=rope)
    if not ratio:
        return layer
    extra = [Extra("compressed rows", dim, ratio)]
    if ratio == 4:
        keys = fields.integer("attention.indexer.key_length", most=MAX_HEAD_DIM)
        extra.append(Extra("indexer keys", keys, ratio))
    return replace(layer, extra=tuple(extra))


def _states(fields: Fields, header: Header, arch: Arch, index: int) -> tuple[StatePart, ...]:
    """What a recurrent layer keeps; llama.cpp stores all of it in float32."""
    if arch.recurrent == "nothing":
        return ()
    if arch.recurrent == "conv":
        columns = fields.integer("shortconv.l_cache") - 1
        return (StatePart("conv", (columns, fields.integer("embedding_length")), 4),)
    kernel = fields.integer("ssm.conv_kernel")
    if arch.recurrent == "kda":
        heads, dim = fields.integer("attention.head_count"), fields.integer("kda.head_dim")
        shape, channels = (heads, dim, dim), 3 * heads * dim
    else:
        if not _has_recurrence(header, index):
            return ()
        inner, state = fields.integer("ssm.inner_size"), fields.integer("ssm.state_size")
        shape = (inner, state)  # type: ignore[assignment]
        channels = inner + 2 * fields.whole("ssm.group_count", 0) * state
    parts = (StatePart("recurrent", shape, 4),)
    return (*parts, StatePart("conv", (kernel - 1, channels), 4)) if kernel > 1 else parts


def _has_recurrence(header: Header, index: int) -> bool:
    """Whether the layer's tensors are there (Nemotron-H has feed-forward blocks between)."""
    marked = {name.split(".")[1] for name in header.tensors if ".ssm_" in name}
    return not marked or str(index) in marked


def _shared(fields: Fields, arch: Arch, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """The last layers may read the cache of the last earlier layer of their kind."""
    default = max(0, len(layers) - arch.unshared) if arch.unshared is not None else 0
    first = len(layers) - fields.whole("attention.shared_kv_layers", default)
    sources = {layer.kind: index for index, layer in enumerate(layers[: max(0, first)])}
    if any(layer.kind not in sources for layer in layers[max(0, first) :]):
        raise fields.wrong("attention.shared_kv_layers", "so that a layer of each kind stays")
    shared = (replace(y, kind="shared", source=sources[y.kind]) for y in layers[first:])
    return (*layers[:first], *shared)
