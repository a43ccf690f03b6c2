"""Rotary position embedding, with angles in float64 so that positions stay exact for long texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvik.spec.model import Rope

# Positions whose angles are worked out together for a text that grows by single tokens.
AHEAD = 64


def angles(rope: Rope, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [T, rope.dim / 2] at integer ``positions`` [T]."""
    cos, sin = _exact(rope, positions.numpy())
    return torch.from_numpy(cos).to(dtype), torch.from_numpy(sin).to(dtype)


def angles_at(rope: Rope, positions: Sequence[int]) -> NDArray[np.float32]:
    """The same as float32 [2, T, rope.dim / 2], cos before sin; not to be written to."""
    if len(positions) == 1:
        block, at = divmod(positions[0], AHEAD)
        return _ahead(rope, block)[at]
    return _exact(rope, np.array(positions)).astype(np.float32)


@lru_cache(maxsize=64)
def _ahead(rope: Rope, block: int) -> list[NDArray[np.float32]]:
    """Of each of ``AHEAD`` positions apart [2, 1, rope.dim / 2]."""
    found = _exact(rope, np.arange(block * AHEAD, (block + 1) * AHEAD)).astype(np.float32)
    found = np.ascontiguousarray(found.transpose(1, 0, 2)[:, :, None])
    found.setflags(write=False)
    return list(found)


def _exact(rope: Rope, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    angle = np.multiply.outer(positions.astype(np.float64), _frequencies(rope))
    found = np.stack((np.cos(angle), np.sin(angle)))
    return found if rope.attention_factor == 1.0 else found * rope.attention_factor


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
