"""ModelSpec from the ``config.json`` of the families that differ from Llama in a few points.

Which layers have a window, and what they store, is the planner's rule for the family; what only
the decoder needs is added here. A field that published files leave out has the default that
transformers gives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvik.spec.families import FAMILIES
from kvik.spec.fields import Fields
from kvik.spec.heeded import refuse_kinds, refuse_other_names, refuse_unmasked
from kvik.spec.hf_config import cache_layers, settled
from kvik.spec.kinds import rotary
from kvik.spec.model import Experts, LayerSpec, ModelSpec, Rope
from kvik.spec.rope import config_rope, rope_params


@dataclass(frozen=True)
class Plain:
    """What sets a family apart.

    ``context``, ``theta``, ``eps``, ``tied`` and ``old`` (the length that RoPE's scaling extended,
    None where no default is known) are what absent fields mean. ``bias`` names the
    projections that always have one. ``asks_bias``: all four have one where ``attention_bias``
    says so. ``partial``: RoPE may turn the first channels of a head alone. ``ropeless``: some
    layers may have none. ``own_head``: the width of a head is never derived. ``lists``: the kinds
    of layers are those of ``layer_types``; ``windowed``: all have the window that there is.
    """

    context: int
    theta: float = 10_000.0
    eps: float = 1e-6
    tied: bool = False
    bias: str = ""
    asks_bias: bool = False
    qk_norm: bool = False
    old: int | None = None
    partial: bool = False
    ropeless: bool = False
    own_head: bool = False
    lists: bool = False
    windowed: bool = False
    experts: Callable[[Fields, int], Experts] | None = None


def spec_from_plain(kind: str, fields: Fields, name: str) -> ModelSpec:
    """The model of family ``kind`` (a key of :data:`PLAIN`) that the fields describe."""
    plain = PLAIN[kind]
    fields = settled(fields, FAMILIES[kind]).with_default("max_position_embeddings", plain.context)
    refuse_unmasked(fields)
    refuse_other_names(fields)
    fields.refuse("mlp_bias", False)
    fields.refuse("hidden_act", "silu")
    if plain.own_head:
        fields.integer("head_dim")
    layers = cache_layers(fields, FAMILIES[kind])
    fields.refuse("v_head_dim", layers[0].k_dim)
    refuse_kinds(fields, layers, heeded=plain.lists, windowed=plain.windowed)
    if plain.experts and fields.flag("use_sliding_window", False):
        raise fields.wrong("use_sliding_window", "false or absent")
    return ModelSpec(
        name=name,
        family=kind,
        layers=_with_rope(fields, plain, layers),
        context=fields.integer("max_position_embeddings"),
        vocab=fields.integer("vocab_size"),
        hidden=fields.integer("hidden_size"),
        ffn=fields.integer("intermediate_size"),
        norm_eps=fields.number("rms_norm_eps", plain.eps),
        tied=fields.flag("tie_word_embeddings", plain.tied),
        qk_norm=plain.qk_norm,
        attention_bias=_biases(fields, plain),
        experts=plain.experts(fields, len(layers)) if plain.experts else None,
    )


def _biases(fields: Fields, plain: Plain) -> str:
    if plain.asks_bias:
        return "qkvo" if fields.flag("attention_bias", False) else plain.bias
    fields.refuse("attention_bias", bool(plain.bias))
    return plain.bias


def _with_rope(
    fields: Fields, plain: Plain, layers: tuple[LayerSpec, ...]
) -> tuple[LayerSpec, ...]:
    turns = rotary(fields, len(layers)) if plain.ropeless else [True] * len(layers)
    rope = _rope(fields, plain, layers[0].k_dim)
    return tuple(
        replace(layer, rope=rope) if turn else layer
        for layer, turn in zip(layers, turns, strict=True)
    )


def _rope(fields: Fields, plain: Plain, head_dim: int) -> Rope:
    params, dim, context = rope_params(fields), head_dim, fields.integer("max_position_embeddings")
    for said in (fields, params):
        if not plain.partial:
            said.refuse("partial_rotary_factor", 1)
        elif "partial_rotary_factor" in said:
            dim = int(head_dim * said.number("partial_rotary_factor"))
    if dim > head_dim:
        raise fields.wrong("partial_rotary_factor", "a share of a head, at most 1")
    extended = plain.old or "original_max_position_embeddings" in fields
    return config_rope(
        params,
        dim=dim,
        theta=fields.number("rope_theta", plain.theta),
        context=context,
        old=fields.integer("original_max_position_embeddings", plain.old) if extended else None,
    )


def _mixtral(fields: Fields, layers: int) -> Experts:
    return _experts(fields, "num_local_experts", 8, 2, "intermediate_size", normed=True)


def _qwen3_moe(fields: Fields, layers: int) -> Experts:
    fields.refuse("shared_expert_intermediate_size", 0)
    name = "num_experts" if "num_experts" in fields else "num_local_experts"
    normed = fields.flag("norm_topk_prob", False)
    step = fields.integer("decoder_sparse_step", 1)
    alone: list[int] = []
    if "mlp_only_layers" in fields:
        alone = fields.numbers("mlp_only_layers", 0, layers - 1)
    dense = tuple(i for i in range(layers) if i in alone or (i + 1) % step)
    found = _experts(fields, name, 128, 8, "moe_intermediate_size", normed=normed)
    return replace(found, dense=dense)


def _experts(
    fields: Fields, name: str, count: int, used: int, width: str, *, normed: bool
) -> Experts:
    count = fields.integer(name, count)
    default = 768 if width == "moe_intermediate_size" else None
    return Experts(
        count,
        fields.integer("num_experts_per_tok", used, most=count),
        fields.integer(width, default),
        normed=normed,
    )


PLAIN: dict[str, Plain] = {
    "llama": Plain(2048, asks_bias=True),
    "mistral": Plain(131_072, windowed=True),
    "qwen2": Plain(32_768, bias="qkv", lists=True),
    "qwen3": Plain(32_768, asks_bias=True, qk_norm=True, own_head=True, lists=True),
    "phi3": Plain(4096, eps=1e-5, old=4096, partial=True, windowed=True),
    "smollm3": Plain(32_768, theta=2e6, tied=True, asks_bias=True, ropeless=True, lists=True),
    "mixtral": Plain(131_072, theta=1e6, eps=1e-5, windowed=True, experts=_mixtral),
    "qwen3_moe": Plain(32_768, asks_bias=True, qk_norm=True, experts=_qwen3_moe),
}
