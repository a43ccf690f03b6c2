"""Rotary position embedding, with angles in float64 so that positions stay exact for long texts."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvik.spec.model import Rope


def angles(rope: Rope, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [T, rope.dim / 2] at integer ``positions`` [T]."""
    # By numpy: of a single token torch's calls take several times as long as their arithmetic.
    angle = np.multiply.outer(positions.numpy().astype(np.float64), _frequencies(rope))
    cos, sin = np.cos(angle), np.sin(angle)
    if rope.attention_factor != 1.0:
        cos, sin = cos * rope.attention_factor, sin * rope.attention_factor
    return torch.from_numpy(cos).to(dtype), torch.from_numpy(sin).to(dtype)


@cache
def _frequencies(rope: Rope) -> NDArray[np.float64]:
    return np.array(rope.frequencies())


def rotate(x: Tensor, rope: Rope | None, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the channels of ``x`` [..., T, D] that RoPE covers; the others pass through."""
    if rope is None:
        return x
    start, stop = rope.offset, rope.offset + rope.dim
    body = x[..., start:stop]
    if rope.layout == "half":
        a, b = body.chunk(2, -1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    else:
        a, b = body[..., 0::2], body[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    if rope.dim == x.shape[-1]:
        return turned
    return torch.cat((x[..., :start], turned, x[..., stop:]), -1)
