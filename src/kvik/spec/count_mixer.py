"""Parameters of the attention or recurrence of one layer."""

from __future__ import annotations

from collections.abc import Callable

from kvik.spec.anatomy import Anatomy
from kvik.spec.fields import Fields
from kvik.spec.model import LayerSpec
from kvik.spec.names import HIDDEN, size
from kvik.spec.states import mamba2_sizes


def attention(fields: Fields, anatomy: Anatomy, layer: LayerSpec) -> int:
    """Projections, biases and norms of q, k and v; a shared layer has q and output alone."""
    if layer.kind == "latent":
        return _compressed(fields, layer) if layer.window else _latent(fields, layer)
    hidden, heads = size(fields, HIDDEN), layer.heads
    out = heads * layer.v_dim
    q = heads * layer.k_dim * (2 if anatomy.gate else 1)
    k, v = layer.kv_heads * layer.k_dim, layer.kv_heads * layer.v_dim
    if layer.kind == "shared":
        k = v = 0
    elif fields.flag("attention_k_eq_v", False) and layer.kind == "full":
        v = 0
    biases = anatomy.biases
    if fields.flag("attention_bias", False):
        biases += anatomy.asked_biases
    if fields.flag("add_qkv_bias", False):
        biases += "q"
    total = hidden * (q + k + v + out)
    total += (q + k + v if "q" in biases else 0) + (hidden if "o" in biases else 0)
    total += _qk_norm(fields, anatomy, layer)
    for keys in layer.extra:  # MiniMax-M3: index queries, one index key, and their norms
        queries = fields.sub("sparse_attention_config").integer("sparse_num_index_heads")
        total += hidden * (queries + 1) * keys.dim + 2 * keys.dim
    if anatomy.sinks == "all" or anatomy.sinks == layer.kind:
        total += heads
    return total


def _qk_norm(fields: Fields, anatomy: Anatomy, layer: LayerSpec) -> int:
    kind = anatomy.qk_norm
    if anatomy.asked_norm and fields.flag("use_qk_norm", False):
        kind = anatomy.asked_norm
    if kind == "row":
        return (layer.heads + layer.kv_heads) * layer.k_dim
    return layer.k_dim * (1 if layer.kind == "shared" else 2) if kind else 0


def _latent(fields: Fields, layer: LayerSpec) -> int:
    hidden, heads = size(fields, HIDDEN), layer.heads
    assert layer.expanded is not None
    (qk, v), rank = layer.expanded, layer.v_dim
    low = fields.whole("q_lora_rank", 0)
    q = hidden * low + low + low * heads * qk if low else hidden * heads * qk
    kv = hidden * layer.k_dim + rank + rank * heads * (qk - layer.rope_dim + v)
    total = q + kv + heads * v * hidden
    if fields.flag("mla_use_output_gate", False):
        total += hidden * heads * v
    for keys in layer.extra:
        count = fields.integer("index_n_heads")
        total += (low or hidden) * count * keys.dim + hidden * (keys.dim + count) + 2 * keys.dim
    return total


def _compressed(fields: Fields, layer: LayerSpec) -> int:
    """DeepSeek-V4: low-rank q and output, one row for K and V, compressors and the indexer."""
    hidden, heads, dim = size(fields, HIDDEN), layer.heads, layer.k_dim
    low, groups = fields.integer("q_lora_rank"), fields.integer("o_groups")
    out = groups * fields.integer("o_lora_rank")
    total = hidden * low + low + low * heads * dim + hidden * dim + dim + heads
    total += heads * dim // groups * out + out * hidden
    for stream in layer.extra:
        spans = 1 + (stream.ratio == 4)
        total += 2 * hidden * spans * stream.dim + stream.ratio * spans * stream.dim + stream.dim
        if stream.name == "indexer keys":
            count = fields.integer("index_n_heads")
            total += low * count * stream.dim + hidden * count
    # Hyper-connections: two of them a layer mix hc_mult residual streams.
    streams = fields.integer("hc_mult")
    mix = 2 * streams + streams**2
    return total + 2 * (streams * hidden * mix + mix + 3)


def recurrence(fields: Fields, kind: str, layer: LayerSpec) -> int:
    """Parameters of a recurrent layer of the family ``kind``."""
    return _RECURRENCES[kind](fields, layer)


def _delta_net(fields: Fields, layer: LayerSpec) -> int:
    hidden, matrix = size(fields, HIDDEN), layer.states[0]
    heads, _, v_dim = matrix.shape
    values = heads * v_dim
    channels = fields.integer("linear_num_key_heads") * fields.integer("linear_key_head_dim") * 2
    channels += values
    kernel = fields.integer("linear_conv_kernel_dim")
    inward = hidden * (channels + values + 2 * heads)
    return inward + channels * kernel + 2 * heads + v_dim + values * hidden


def _kimi_delta(fields: Fields, layer: LayerSpec) -> int:
    hidden, (heads, dim, _) = size(fields, HIDDEN), layer.states[0].shape
    inner, kernel = heads * dim, layer.states[1].shape[0] + 1
    full = fields.sub("linear_attn_config").flag("use_full_rank_gate", False)
    gate = hidden * inner if full else hidden * dim + dim * inner
    decay = hidden * dim + dim * inner + inner + heads
    return 4 * hidden * inner + 3 * inner * kernel + gate + decay + hidden * heads + dim


def _lightning(fields: Fields, layer: LayerSpec) -> int:
    hidden, (heads, dim, _) = size(fields, HIDDEN), layer.states[0].shape
    return 5 * hidden * heads * dim + heads * dim


def _short_conv(fields: Fields, layer: LayerSpec) -> int:
    hidden = size(fields, HIDDEN)
    return 4 * hidden * hidden + hidden * fields.integer("conv_L_cache")


def _mamba1(fields: Fields, layer: LayerSpec) -> int:
    hidden, (inner, state) = size(fields, HIDDEN), layer.states[0].shape
    jamba = "mamba_d_state" in fields
    kernel = fields.integer("mamba_d_conv" if jamba else "conv_kernel")
    rank = fields.integer("mamba_dt_rank" if jamba else "time_step_rank", -(-hidden // 16))
    steps = inner * (rank + 2 * state) + rank * inner + inner
    norms = rank + 2 * state if jamba else 0
    return 3 * hidden * inner + inner * (kernel + 1) + steps + inner * (state + 1) + norms


def mamba2(fields: Fields, layer: LayerSpec) -> int:
    """A Mamba-2 mixer; the gated norm is there unless ``mamba_rms_norm`` turns it off."""
    hidden = size(fields, HIDDEN)
    heads, dim, groups, state, kernel = mamba2_sizes(fields)
    inner, channels = heads * dim, heads * dim + 2 * groups * state
    norm = inner if fields.flag("mamba_rms_norm", layer.kind == "state") else 0
    inward = hidden * (inner + channels + heads)
    return inward + channels * (kernel + 1) + 3 * heads + norm + inner * hidden


_RECURRENCES: dict[str, Callable[[Fields, LayerSpec], int]] = {
    "qwen3_next": _delta_net,
    "qwen3_5_text": _delta_net,
    "qwen3_5_moe_text": _delta_net,
    "qwen3_5": _delta_net,
    "qwen3_5_moe": _delta_net,
    "kimi_linear": _kimi_delta,
    "minimax": _lightning,
    "minimax_text_01": _lightning,
    "minimax_m1": _lightning,
    "lfm2": _short_conv,
    "lfm2_moe": _short_conv,
    "jamba": _mamba1,
    "mamba": _mamba1,
    "mamba2": mamba2,
    "granitemoehybrid": mamba2,
    "nemotron_h": mamba2,
    "falcon_h1": mamba2,
}
