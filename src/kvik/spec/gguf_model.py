"""ModelSpec from the metadata of a GGUF file of an architecture that the decoder runs."""

from __future__ import annotations

import math
import sys
from array import array
from dataclasses import replace
from pathlib import Path

from kvik.errors import SpecError
from kvik.spec.fields import MAX_HEAD_DIM, MAX_LAYERS, Fields
from kvik.spec.gguf import Header, read_header
from kvik.spec.model import Experts, LayerSpec, ModelSpec, Rope
from kvik.spec.rope import long_rope

ROPE_FACTORS = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (ROPE_FACTORS, LONG, SHORT)


def spec_from_gguf(path: Path) -> ModelSpec:
    """Read the GGUF file at ``path``; of its tensors only RoPE factors are read."""
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
    factors = {name: _rope_factors(path, header, name) for name in ROPE_TENSORS}
    return replace(
        spec,
        name=general.text("general.name", path.stem),
        layers=tuple(_with_factors(fields, layer, factors) for layer in spec.layers),
    )


def _plain(fields: Fields, header: Header) -> ModelSpec:
    """Llama's shape: Llama, Mistral and Mixtral (all ``llama``), Qwen, Phi-3, SmolLM3."""
    arch, count = fields.label("")[:-1], _layer_count(fields)
    for unknown in UNKNOWN_SCALES:
        fields.refuse(unknown)
    if arch != "phi3":
        fields.refuse("rope.scaling.attn_factor", 1.0)
    layer = _windowed(fields, arch, _layer(fields, _rope(fields, "rope.freq_base", arch == "phi3")))
    spec = _spec(fields, header, arch, (layer,) * count)
    if arch == "smollm3":
        # llama.cpp writes no key for it: every fourth layer has no rotary embedding.
        layers = [layer if (i + 1) % 4 else replace(layer, rope=None) for i in range(count)]
        spec = replace(spec, layers=tuple(layers))
    return replace(
        spec, qk_norm=arch in ("qwen3", "qwen3moe"), experts=_experts(fields, header, arch, count)
    )


def _windowed(fields: Fields, arch: str, layer: LayerSpec) -> LayerSpec:
    """The layer with the file's window; one as wide as the context drops nothing."""
    if arch not in ("llama", "phi3"):
        fields.refuse("attention.sliding_window", 0)
        return layer
    window = fields.whole("attention.sliding_window", 0)
    if not window or window >= fields.integer("context_length"):
        return layer
    return replace(layer, kind="sliding", window=window)


def _experts(fields: Fields, header: Header, arch: str, count: int) -> Experts | None:
    if arch not in ("llama", "qwen3moe"):
        fields.refuse("expert_count", 0)
        return None
    fields.refuse("expert_shared_count", 0)
    fields.refuse("expert_weights_scale", 0.0, 1.0)
    fields.refuse("expert_gating_func", 0, 1)
    if not fields.whole("expert_count", 0):
        return None
    routed = {i for i in range(count) if f"blk.{i}.ffn_gate_inp.weight" in header.tensors}
    dense = tuple(i for i in range(count) if i not in routed) if routed else ()
    experts = fields.integer("expert_count")
    return Experts(
        experts,
        fields.integer("expert_used_count", most=experts),
        fields.integer("feed_forward_length" if arch == "llama" else "expert_feed_forward_length"),
        normed=fields.flag("expert_weights_norm", True),
        dense=dense,
    )


def _gemma2(fields: Fields, header: Header) -> ModelSpec:
    count = _layer_count(fields)
    full = _layer(fields, _rope(fields, "rope.freq_base"))
    if count == 46:
        # Gemma 2 27B alone scales scores by its width per head; the format has no key for it.
        full = replace(full, scale=(fields.integer("embedding_length") // full.heads) ** -0.5)
    full = replace(full, softcap=fields.number("attn_logit_softcapping", 50.0))
    window = fields.integer("attention.sliding_window", 4096)
    sliding = replace(full, kind="sliding", window=window)
    layers = tuple(sliding if slides else full for slides in _slides(fields, count, 2))
    spec = _spec(fields, header, "gemma2", layers)
    return replace(
        spec,
        activation="gelu_tanh",
        embed_scale=spec.hidden**0.5,
        post_norms=True,
        final_softcap=fields.number("final_logit_softcapping", 30.0),
    )


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


BUILDERS = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "qwen3moe", "phi3", "smollm3"), _plain),
    "gemma2": _gemma2,
    "gemma3": _gemma3,
}
# What other models of these shapes scale or bound, and these do not.
UNKNOWN_SCALES = (
    *("attention.scale", "logit_scale", "residual_scale", "embedding_scale"),
    *("attn_logit_softcapping", "final_logit_softcapping"),
)


def _layer_count(fields: Fields) -> int:
    return fields.integer("block_count", most=MAX_LAYERS)


def _slides(fields: Fields, count: int, period: int = 6) -> list[bool]:
    """Which layers have the window; the key holds a period or a list and is mostly absent."""
    pattern = fields.get("attention.sliding_window_pattern")
    if isinstance(pattern, array):
        return [
            bool(slides) for slides in fields.sequence("attention.sliding_window_pattern", count)
        ]
    period = fields.integer("attention.sliding_window_pattern", period)
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


def _rope(fields: Fields, theta: str, partial: bool = False) -> Rope:
    """Rotary embedding of a head, or with ``partial`` perhaps of its first channels."""
    dim, head = fields.integer("rope.dimension_count", _head_dim(fields)), _head_dim(fields)
    if dim != head and not (partial and dim < head):
        raise fields.wrong("rope.dimension_count", f"the head dimension, {head}")
    fields.refuse("rope.scaling.type", "none", "linear", *(["longrope"] if partial else []))
    linear = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    if fields.get("rope.scaling.type") in ("none", "longrope"):
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
        attention_bias=_biases(header),
    )


def _biases(header: Header) -> str:
    """The letters of the projections that have a bias, by the tensors of the first layer."""
    names = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"}
    found = [letter for letter, name in names.items() if f"blk.0.{name}.bias" in header.tensors]
    fused = "qkv" if "blk.0.attn_qkv.bias" in header.tensors else ""
    return fused + "".join(found)


def _with_factors(
    fields: Fields, layer: LayerSpec, factors: dict[str, tuple[float, ...]]
) -> LayerSpec:
    if layer.rope is None:
        return layer
    rope = layer.rope
    if factors[ROPE_FACTORS]:
        rope = replace(rope, factors=factors[ROPE_FACTORS])
    if factors[LONG] and factors[SHORT]:
        context = fields.integer("context_length")
        rope = long_rope(
            rope.dim,
            rope.theta,
            long=factors[LONG],
            short=factors[SHORT],
            context=context,
            old=fields.integer("rope.scaling.original_context_length"),
            attention_factor=fields.number("rope.scaling.attn_factor"),
        )
    elif factors[LONG] or factors[SHORT]:
        raise fields.fault(f"one of the tensors {LONG} and {SHORT} is missing")
    return replace(layer, rope=rope)


def _rope_factors(path: Path, header: Header, name: str) -> tuple[float, ...]:
    """A tensor of frequency divisors, one for each pair; empty where the file has none."""
    tensor = header.tensors.get(name)
    if tensor is None:
        return ()
    if tensor.type != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > MAX_HEAD_DIM:
        raise SpecError(f"{path}: {name} is {tensor.type} {list(tensor.shape)}, not F32")
    with path.open("rb") as file:
        file.seek(tensor.offset)
        factors = array("f", file.read(tensor.nbytes))
    if sys.byteorder == "big":
        factors.byteswap()
    if not all(0 < factor < math.inf for factor in factors):
        raise SpecError(f"{path}: {name} holds values that are not above zero")
    return tuple(factors)
