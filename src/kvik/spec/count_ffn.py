"""Parameters of the feed-forward network of one layer, dense or a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvik.spec.anatomy import Anatomy
from kvik.spec.fields import MAX_LAYERS, Fields
from kvik.spec.names import (
    EXPERTS,
    EXPERTS_PER_TOKEN,
    FFN,
    HIDDEN,
    only_size,
    pick,
    size,
    size_of,
)


@dataclass(frozen=True)
class Mixture:
    """How many experts there are, how many of them a token uses, and their width.

    ``idle`` further experts have no weights (LongCat-Flash): a router may choose them too.
    """

    experts: int
    used: int
    width: int
    idle: int = 0


def mixture(fields: Fields) -> Mixture | None:
    """The model's experts; None for a dense model."""
    inner = fields.sub("ffn_config")
    fields = inner if pick(inner, EXPERTS) in inner else fields
    name = pick(fields, EXPERTS)
    if name not in fields or fields.whole(name) <= 1:
        return None
    used = only_size(fields, EXPERTS_PER_TOKEN)
    if used > fields.integer(name):
        raise fields.wrong(pick(fields, EXPERTS_PER_TOKEN), f"at most {fields.integer(name)}")
    width = only_size(fields, ("moe_intermediate_size", "expert_ffn_hidden_size", *FFN))
    experts, idle = fields.integer(name), fields.whole("zero_expert_num", 0)
    # On average a choice falls on experts without weights as often as there are such experts.
    return Mixture(experts, max(1, used * experts // (experts + idle)), width, idle)


def is_sparse(fields: Fields, index: int) -> bool:
    """Whether layer ``index`` of a mixture of experts has experts."""
    for name, yes in (("mlp_layer_types", "sparse"), ("moe_layer_freq", 1)):
        listed: Any = fields.get(name)
        if isinstance(listed, list):
            if len(listed) <= index:
                raise fields.wrong(name, "a list with an entry for each layer")
            return bool(listed[index] == yes)
    if "mlp_only_layers" in fields and index in fields.numbers("mlp_only_layers", 0, MAX_LAYERS):
        return False
    if index < fields.whole("first_k_dense_replace", fields.whole("num_dense_layers", 0)):
        return False
    if "expert_layer_period" in fields:
        period = fields.integer("expert_layer_period")
        return index % period == fields.whole("expert_layer_offset", 0)
    for name in ("decoder_sparse_step", "interleave_moe_layer_step"):
        if name in fields:
            return (index + 1) % fields.integer(name) == 0
    return index % fields.integer("moe_layer_freq", 1) == 0


def network(fields: Fields, anatomy: Anatomy, width: int) -> int:
    """One feed-forward network of the given width."""
    hidden = size(fields, HIDDEN)
    matrices = 3 if anatomy.gated else 2
    bias = "f" in anatomy.biases or fields.flag("mlp_bias", False)
    return matrices * hidden * width + ((matrices - 1) * width + hidden if bias else 0)


def dense(fields: Fields, anatomy: Anatomy, index: int) -> int:
    """The network of a layer without experts."""
    return network(fields, anatomy, dense_width(fields, index))


def dense_width(fields: Fields, index: int) -> int:
    """Width of the dense network, where it has a name or a rule of its own."""
    hidden = size(fields, HIDDEN)
    if "block_configs" in fields:
        return _block_width(fields, index, hidden)
    names = ("intermediate_size_mlp", "dense_intermediate_size", *FFN)
    width = size_of(fields, names, index, 4 * hidden)
    if fields.flag("block_auto_adjust_ff_dim", False):  # LFM2
        width = int(2 * width / 3)
        width = int(fields.number("block_ffn_dim_multiplier", 1.0) * width)
        step = fields.integer("block_multiple_of", 256)
        width = -(-width // step) * step
    return width


def _block_width(fields: Fields, index: int, hidden: int) -> int:
    """Nemotron-NAS: a multiple of the width, of which two thirds rounded up to 256."""
    blocks = fields.get("block_configs")
    entry = blocks[index] if isinstance(blocks, list) and index < len(blocks) else None
    ffn = entry.get("ffn") if isinstance(entry, dict) else None
    if not isinstance(ffn, dict):
        raise fields.fault(f"the field block_configs[{index}].ffn is missing")
    block = fields.at(ffn, f"block_configs[{index}].ffn.")
    if block.flag("no_op", False) or block.flag("replace_with_linear", False):
        return 0
    width = int(2 * block.number("ffn_mult") * hidden / 3)
    return -(-width // 256) * 256


def sparse(fields: Fields, anatomy: Anatomy, family: str, experts: Mixture) -> tuple[int, int]:
    """Parameters of a layer with experts: those that every token uses, and those of all experts."""
    hidden = size(fields, HIDDEN)
    matrices = 3 if anatomy.gated else 2
    name = next((n for n in ("moe_latent_size", "routed_expert_hidden_size") if n in fields), "")
    inner = fields.integer(name) if name else hidden
    routed = experts.experts * matrices * inner * experts.width
    always = hidden * (experts.experts + experts.idle) + (2 * hidden * inner if name else 0)
    if family == "gpt_oss":  # biases of the experts and of the router
        routed += experts.experts * (2 * experts.width + hidden)
        always += experts.experts
    return always + _shared(fields, anatomy, family, experts), routed


SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert")


def _shared(fields: Fields, anatomy: Anatomy, family: str, experts: Mixture) -> int:
    """The experts that every token uses."""
    name = pick(fields, SHARED)
    stated = only_size(fields, (name,)) if fields.get(name) else 0
    count = stated or 1
    for name in ("moe_shared_expert_intermediate_size", "shared_intermediate_size"):
        if fields.whole(name, 0):
            return network(fields, anatomy, fields.integer(name) * count)
    if fields.whole("shared_expert_intermediate_size", 0):
        gate = size(fields, HIDDEN)
        return network(fields, anatomy, fields.integer("shared_expert_intermediate_size")) + gate
    if fields.whole("share_expert_dim", 0):
        return network(fields, anatomy, fields.integer("share_expert_dim") * count)
    if family.startswith("llama4"):
        return network(fields, anatomy, experts.width)
    return network(fields, anatomy, experts.width * stated)
