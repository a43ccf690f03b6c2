"""The fixed arrays that recurrent layers keep for each sequence.

A convolution of kernel k keeps its last k - 1 inputs. Item sizes are those that vLLM uses: the
matrix of a delta net or linear attention in float32, that of Mamba in ``mamba_ssm_cache_dtype``
or else in the model's 16 bits, convolutions in 16 bits.
"""

from __future__ import annotations

from kvik.spec.fields import Fields
from kvik.spec.model import StatePart
from kvik.spec.names import HEADS, HIDDEN, head_dim, size

DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}


def _conv(kernel: int, channels: int, groups: int = 0, width: int = 0) -> tuple[StatePart, ...]:
    part = StatePart("conv", (max(1, kernel - 1), channels), 2, groups, width)
    return (part,) if kernel > 1 else ()


def _ssm_bytes(fields: Fields, default: int = 2) -> int:
    for name in ("mamba_ssm_cache_dtype", "mamba_ssm_dtype"):
        if name in fields:
            kind = fields.text(name)
            if kind not in DTYPES:
                raise fields.wrong(name, f"one of {', '.join(DTYPES)}")
            return DTYPES[kind]
    return default


def gated_delta_net(fields: Fields) -> tuple[StatePart, ...]:
    """Gated DeltaNet (arXiv 2412.06464): a matrix per value head, a convolution over q, k and v."""
    keys, values = (fields.integer(f"linear_num_{which}_heads") for which in ("key", "value"))
    k_dim, v_dim = (fields.integer(f"linear_{which}_head_dim") for which in ("key", "value"))
    channels = 2 * keys * k_dim + values * v_dim
    matrix = StatePart("recurrent", (values, k_dim, v_dim), _ssm_bytes(fields, 4))
    return matrix, *_conv(fields.integer("linear_conv_kernel_dim"), channels)


def kimi_delta(fields: Fields) -> tuple[StatePart, ...]:
    """Kimi Delta Attention (arXiv 2510.26692)."""
    if "linear_attn_config" in fields:
        inner = fields.sub("linear_attn_config")
        heads, dim = inner.integer("num_heads"), inner.integer("head_dim")
        kernel = inner.integer("short_conv_kernel_size")
    else:
        heads, dim = fields.integer("linear_num_heads"), fields.integer("linear_head_dim")
        kernel = fields.integer("linear_conv_kernel_dim")
    return StatePart("recurrent", (heads, dim, dim), 4), *_conv(kernel, 3 * heads * dim)


def lightning(fields: Fields) -> tuple[StatePart, ...]:
    """Lightning attention (arXiv 2401.04658): one matrix a head."""
    dim = head_dim(fields)
    return (StatePart("recurrent", (size(fields, HEADS), dim, dim), 4),)


def short_conv(fields: Fields) -> tuple[StatePart, ...]:
    """The gated short convolution of LFM2."""
    channels = fields.integer("conv_dim", size(fields, HIDDEN))
    return _conv(fields.integer("conv_L_cache"), channels)


def mamba1(fields: Fields) -> tuple[StatePart, ...]:
    """Mamba (arXiv 2312.00752) as Jamba, Mamba and FalconMamba name its sizes."""
    prefix = "mamba_" if "mamba_d_state" in fields else ""
    state = fields.integer("mamba_d_state" if prefix else "state_size")
    kernel = fields.integer("mamba_d_conv" if prefix else "conv_kernel")
    inner = fields.integer("mamba_expand" if prefix else "expand") * size(fields, HIDDEN)
    inner = inner if prefix else fields.integer("intermediate_size", inner)
    return StatePart("recurrent", (inner, state), _ssm_bytes(fields)), *_conv(kernel, inner)


def mamba2(fields: Fields) -> tuple[StatePart, ...]:
    """Mamba-2 (arXiv 2405.21060); the convolution runs over x, B and C."""
    heads, dim, groups, state, kernel = mamba2_sizes(fields)
    matrix = StatePart("recurrent", (heads, dim, state), _ssm_bytes(fields))
    return matrix, *_conv(kernel, heads * dim + 2 * groups * state, groups, 2 * state)


def mamba2_sizes(fields: Fields) -> tuple[int, int, int, int, int]:
    """Heads, their width, groups, state and kernel of a Mamba-2 layer."""
    if "mamba_num_heads" in fields:  # Nemotron-H
        names = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
    elif "mamba_n_heads" in fields:  # Bamba, Granite 4, Falcon-H1
        names = ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
    else:
        names = ("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel")
    heads = fields.integer(names[0])
    if fields.get(names[1]) == "auto":
        inner = fields.integer("mamba_expand") * size(fields, HIDDEN)
        dim = fields.integer("mamba_d_ssm", inner) // heads
    else:
        dim = fields.integer(names[1])
    return heads, dim, *(fields.integer(name) for name in names[2:])  # type: ignore[return-value]
