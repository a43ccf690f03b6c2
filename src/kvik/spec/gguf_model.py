"""ModelSpec from the metadata of a GGUF file (architectures ``llama`` and ``gemma3``)."""

from __future__ import annotations

import math
import sys
from array import array
from dataclasses import replace
from pathlib import Path

from kvik.errors import SpecError
from kvik.spec.fields import MAX_HEAD_DIM, MAX_LAYERS, Fields
from kvik.spec.gguf import Header, read_header
from kvik.spec.model import LayerSpec, ModelSpec, Rope

ROPE_FACTORS = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (ROPE_FACTORS, LONG, SHORT)


def spec_from_gguf(path: Path) -> ModelSpec:
    """Read the GGUF file at ``path``; one tensor at most is read, the RoPE factors of Llama 3."""
    header = read_header(path)
    general = Fields(header.metadata, str(path))
    architecture = general.text("general.architecture")
    if architecture not in BUILDERS:
        raise general.fault(
            f"the architecture {architecture[:80]!r} is not supported; {', '.join(BUILDERS)} are"
        )
    if general.get("split.count") not in (None, 0, 1):
        raise general.fault("one part of a split model: join it with llama-gguf-split --merge")
    fields = Fields(header.metadata, str(path), f"{architecture}.")
    spec = BUILDERS[architecture](fields, header)
    factors = _rope_factors(path, header)
    return replace(
        spec,
        name=general.text("general.name", path.stem),
        layers=tuple(_with_factors(layer, factors) for layer in spec.layers),
    )


def _llama(fields: Fields, header: Header) -> ModelSpec:
    if fields.get("expert_count"):
        raise fields.wrong("expert_count", "0 (mixtures of experts are not supported)")
    fields.refuse("attention.scale")
    layer = _layer(fields, _rope(fields, "rope.freq_base"))
    if "attention.sliding_window" in fields:
        layer = replace(layer, kind="sliding", window=fields.integer("attention.sliding_window"))
    return _spec(fields, header, "llama", (layer,) * _layer_count(fields))


def _gemma3(fields: Fields, header: Header) -> ModelSpec:
    count = _layer_count(fields)
    full = _layer(fields, _rope(fields, "rope.freq_base"))
    if count == 62:
        # Gemma 3 27B alone scales scores by its width per head; the format has no key for it.
        full = replace(full, scale=(fields.integer("embedding_length") / full.heads) ** -0.5)
    full = replace(full, softcap=fields.optional_number("attn_logit_softcapping"))
    layers = (full,) * count
    if "attention.sliding_window" in fields:
        theta = fields.number("rope.freq_base_swa", 10_000.0)
        window = fields.integer("attention.sliding_window")
        sliding = replace(full, kind="sliding", window=window, rope=Rope(full.k_dim, theta))
        layers = tuple(sliding if slides else full for slides in _slides(fields, count))
    spec = _spec(fields, header, "gemma3", layers)
    return replace(
        spec,
        activation="gelu_tanh",
        embed_scale=spec.hidden**0.5,
        qk_norm=True,
        post_norms=True,
        final_softcap=fields.optional_number("final_logit_softcapping"),
    )


BUILDERS = {"llama": _llama, "gemma3": _gemma3}


def _layer_count(fields: Fields) -> int:
    return fields.integer("block_count", most=MAX_LAYERS)


def _slides(fields: Fields, count: int) -> list[bool]:
    """Which layers have the window; the key holds a period or a list and is mostly absent."""
    pattern = fields.get("attention.sliding_window_pattern")
    if isinstance(pattern, array):
        return [
            bool(slides) for slides in fields.sequence("attention.sliding_window_pattern", count)
        ]
    period = fields.integer("attention.sliding_window_pattern", 6)
    return [bool((i + 1) % period) for i in range(count)]


def _head_dim(fields: Fields) -> int:
    default = fields.integer("embedding_length") // fields.integer("attention.head_count")
    return fields.integer("attention.key_length", max(1, default), most=MAX_HEAD_DIM)


def _layer(fields: Fields, rope: Rope) -> LayerSpec:
    heads, head_dim = fields.integer("attention.head_count"), _head_dim(fields)
    return LayerSpec(
        "full",
        heads,
        fields.integer("attention.head_count_kv", heads),
        head_dim,
        fields.integer("attention.value_length", head_dim, most=MAX_HEAD_DIM),
        rope=rope,
    )


def _rope(fields: Fields, theta: str) -> Rope:
    dim = fields.integer("rope.dimension_count", _head_dim(fields))
    if dim != _head_dim(fields):
        raise fields.wrong("rope.dimension_count", f"the head dimension, {_head_dim(fields)}")
    fields.refuse("rope.scaling.type", "none", "linear")
    linear = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    if fields.get("rope.scaling.type") == "none":
        linear = 1.0
    return Rope(dim, fields.number(theta, 10_000.0), linear=linear)


def _spec(fields: Fields, header: Header, family: str, layers: tuple[LayerSpec, ...]) -> ModelSpec:
    embedding = header.tensors.get("token_embd.weight")
    tokens = header.metadata.get("tokenizer.ggml.tokens", ())
    listed = len(tokens) if hasattr(tokens, "__len__") else 0
    return ModelSpec(
        name="",
        family=family,
        layers=layers,
        context=fields.integer("context_length"),
        vocab=embedding.shape[0] if embedding else fields.integer("vocab_size", listed or None),
        hidden=fields.integer("embedding_length"),
        ffn=fields.integer("feed_forward_length"),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        tied="output.weight" not in header.tensors,
        attention_bias="blk.0.attn_q.bias" in header.tensors,
    )


def _with_factors(layer: LayerSpec, factors: tuple[float, ...]) -> LayerSpec:
    if layer.rope is None or not factors:
        return layer
    return replace(layer, rope=replace(layer.rope, factors=factors))


def _rope_factors(path: Path, header: Header) -> tuple[float, ...]:
    """The tensor that holds Llama 3's frequency divisors, one for each pair."""
    tensor = header.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return ()
    if tensor.type != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > MAX_HEAD_DIM:
        raise SpecError(f"{path}: {ROPE_FACTORS} is {tensor.type} {list(tensor.shape)}, not F32")
    with path.open("rb") as file:
        file.seek(tensor.offset)
        factors = array("f", file.read(tensor.nbytes))
    if sys.byteorder == "big":
        factors.byteswap()
    if not all(0 < factor < math.inf for factor in factors):
        raise SpecError(f"{path}: {ROPE_FACTORS} holds values that are not above zero")
    return tuple(factors)
