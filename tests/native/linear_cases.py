"""Random GGUF blocks, and what a product with them is by definition."""

from __future__ import annotations

import gguf
import numpy as np
import torch
from torch import Tensor

from kvik.ops.native_linear import PACKABLE, Packed, pack

FLOATS = ("F32", "F16", "BF16")
CODED = tuple(kind for kind in PACKABLE if kind not in FLOATS)
# Types whose scales the file computes from two numbers: kept to 11 bits.
ROUNDED = ("Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
TWO_SCALES = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")


def block(kind: str) -> int:
    """Elements of a block."""
    return int(gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0])


def random_bytes(kind: str, rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """Rows of valid blocks: any bits but for scales of ordinary size."""
    rng = np.random.default_rng(seed)
    if kind in FLOATS:
        values = rng.standard_normal((rows, cols)).astype(np.float32)
        if kind == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float32 if kind == "F32" else np.float16).view(np.uint8)
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (rows * cols // elements, size), dtype=np.uint8)
    for at in (208,) if kind == "Q6_K" else (0, 2) if kind in TWO_SCALES else (0,):
        scales = rng.uniform(-0.02, 0.02, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales[:, None].view(np.uint8)
    return blocks.reshape(rows, -1)


def values(raw: np.ndarray, kind: str) -> Tensor:
    """What the file says, float32."""
    return torch.from_numpy(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]))


def packed(kind: str, rows: int, cols: int, seed: int = 0) -> Packed:
    """A random packed matrix."""
    return pack(random_bytes(kind, rows, cols, seed), kind, (rows, cols))


def dense(weight: Packed) -> Tensor:
    """Its values, float64."""
    return weight.rows(range(weight.shape[0])).double()


def rounded(x: Tensor) -> Tensor:
    """The input as the kernels see it: 16 bits for each group of 32, float64."""
    groups = x.reshape(len(x), -1, 32)
    most = groups.abs().amax(-1, keepdim=True)
    # Tensors on both sides: dividing by a number would multiply with its rounded inverse.
    full = torch.full_like(most, 32767)
    codes = (groups * (full / most)).round()
    return (codes.double() * (most / full).double()).reshape(x.shape)
