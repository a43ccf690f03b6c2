"""Parameters of a model, counted from its configuration.

Matrices, biases and norms of the language model as published checkpoints have them; towers for
images and sound and the layers that predict further tokens are left out.
"""

from __future__ import annotations

from kvik.spec.anatomy import ANATOMIES, Anatomy
from kvik.spec.count_ffn import Mixture, dense, is_sparse, mixture, sparse
from kvik.spec.count_mixer import attention, mamba2, recurrence
from kvik.spec.count_whisper import whisper
from kvik.spec.fields import Fields
from kvik.spec.model import LayerSpec, ModelSpec
from kvik.spec.names import HIDDEN, size
from kvik.spec.params import Params


def count_params(fields: Fields, spec: ModelSpec) -> Params | None:
    """The counts of ``spec``; None where the family's weights are not known well enough."""
    if spec.family == "whisper":
        return whisper(fields, spec)
    anatomy = ANATOMIES.get(spec.family)
    if anatomy is None:
        return None
    experts = mixture(fields)
    always = routed = mixers = 0
    for index, layer in enumerate(spec.layers):
        mixer = _mixer(fields, anatomy, spec, layer)
        fixed, mixed = _layer(fields, anatomy, spec, layer, index, experts)
        mixers += mixer
        always += mixer + fixed
        routed += mixed
    table = spec.vocab * spec.hidden
    output = 0 if spec.tied else table
    per_layer, rest = _beside(fields, anatomy, spec)
    positions = _positions(fields, anatomy, spec)
    total = always + routed + table + output + per_layer + positions + rest
    used = routed * experts.used // experts.experts if experts else 0
    looked_up = per_layer + positions + (0 if spec.tied else table)
    return Params(
        total=total,
        active=total - routed + used - looked_up,
        routed=routed,
        experts=experts.experts if experts else 0,
        experts_per_token=experts.used if experts else 0,
        embedding=table,
        output=output,
        per_layer=per_layer,
        attention=mixers,
        looked_up=looked_up,
    )


def _mixer(fields: Fields, anatomy: Anatomy, spec: ModelSpec, layer: LayerSpec) -> int:
    """Attention or recurrence of a layer, or both."""
    if layer.kind != "state":
        beside = mamba2(fields, layer) if layer.states and spec.family == "falcon_h1" else 0
        return attention(fields, anatomy, layer) + beside
    return recurrence(fields, spec.family, layer) if layer.states else 0


def _positions(fields: Fields, anatomy: Anatomy, spec: ModelSpec) -> int:
    """Learned positions."""
    if not anatomy.positions:
        return 0
    return (fields.integer(anatomy.positions) + anatomy.more_positions) * spec.hidden


def _layer(
    fields: Fields,
    anatomy: Anatomy,
    spec: ModelSpec,
    layer: LayerSpec,
    index: int,
    experts: Mixture | None,
) -> tuple[int, int]:
    """Beside the mixer: parameters that every token uses, and those of the experts."""
    norm = spec.hidden * (2 if anatomy.norm_bias else 1)
    norms = anatomy.norms + bool(anatomy.another_norm and fields.flag(anatomy.another_norm, False))
    total = norms * norm
    if anatomy.alone and (layer.states or layer.kind != "state"):
        return total, 0
    if experts is None or not _has_experts(fields, anatomy, index):
        return total + dense(fields, anatomy, index), 0
    fixed, mixed = sparse(fields, anatomy, spec.family, experts)
    if spec.family == "longcat_flash":  # every other attention has experts beside its network
        other = index % 2
        return total + dense(fields, anatomy, index) + (0 if other else fixed), (
            0 if other else mixed
        )
    if spec.family.startswith("gemma4"):  # experts beside a dense network, with norms of their own
        fixed += dense(fields, anatomy, index) + 4 * spec.hidden + experts.experts
    return total + fixed, mixed


def _has_experts(fields: Fields, anatomy: Anatomy, index: int) -> bool:
    """In models whose layers are one thing alone, the pattern tells."""
    if not anatomy.alone:
        return is_sparse(fields, index)
    kinds = fields.get("layers_block_type") or fields.get("hybrid_override_pattern")
    return bool(kinds is not None and kinds[index] in ("E", "moe"))


def _beside(fields: Fields, anatomy: Anatomy, spec: ModelSpec) -> tuple[int, int]:
    """Per-layer embeddings, and what else stands outside the layers."""
    hidden = spec.hidden
    norm = hidden * (2 if anatomy.norm_bias else 1)
    rest = norm if anatomy.final_norm else 0
    rest += norm if anatomy.embedding_norm else 0
    if "h" in anatomy.biases and not spec.tied:
        rest += spec.vocab
    if spec.family in ("deepseek_v4", "deepseek_ref"):
        streams = fields.integer("hc_mult")
        rest += streams * hidden * streams + streams + 1
    if spec.family in ("gemma3n", "gemma3n_text"):
        return _per_layer(fields, spec, 256, rest + _altup(fields, spec))
    if spec.family.startswith("gemma4"):
        return _per_layer(fields, spec, 0, rest)
    return 0, rest


def _per_layer(fields: Fields, spec: ModelSpec, default: int, rest: int) -> tuple[int, int]:
    """A small embedding for each layer and token, and what mixes it in (Gemma 3n and 4)."""
    width, count = fields.whole("hidden_size_per_layer_input", default), len(spec.layers)
    if not width:
        return 0, rest
    rows = fields.integer("vocab_size_per_layer_input", 262_144)
    mixing = count * (2 * spec.hidden * width + spec.hidden)
    return rows * count * width, rest + mixing + spec.hidden * count * width + width


def _altup(fields: Fields, spec: ModelSpec) -> int:
    """Gemma 3n's alternating updates and low-rank residuals."""
    hidden, inputs = size(fields, HIDDEN), fields.integer("altup_num_inputs", 4)
    rank = fields.integer("laurel_rank", 64)
    each = hidden + inputs * inputs + inputs**3 + inputs * hidden + hidden
    each += 2 * hidden * rank + hidden
    return len(spec.layers) * each + 2 * (inputs - 1) * hidden * hidden
