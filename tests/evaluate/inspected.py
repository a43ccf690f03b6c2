"""The figures of ``kvik inspect`` again, in plain float64 numpy with all of attention at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from tests.models.dense_cache import DenseCache, rotate, visible
from torch import Tensor

from kvik.evaluate.inspect.observe import LayerFigures, Observer
from kvik.spec import LayerSpec, ModelSpec

Array = NDArray[np.float64]


class Recording(DenseCache):
    """A dense cache that remembers what it was given."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.given: dict[int, tuple[Tensor, Tensor | None, Tensor | None]] = {}

    def attend(
        self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        self.given[layer] = q, k, v
        return super().attend(layer, q, k, v)


@dataclass
class Still:
    """A cache that answers nothing: for q, k and v that no model made."""

    spans: list[tuple[int, int]] = field(default_factory=list)

    def attend(
        self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return q, q[..., 0]

    def read_state(self, layer: int) -> Tensor:
        raise NotImplementedError

    def write_state(self, layer: int, state: Tensor) -> None:
        raise NotImplementedError


def look(spec: LayerSpec, q: Tensor, k: Tensor, v: Tensor) -> LayerFigures:
    """The figures of one layer of q [T, heads, D], k [T, H, D] and v [T, H, Dv]."""
    model = ModelSpec("planted", "llama", (spec,), context=4096, vocab=9, hidden=8, ffn=8)
    observer = Observer(Still([(0, len(q))]), model)
    observer.attend(0, q, k, v)
    return observer.layers[0]


def weights(spec: LayerSpec, seen: LayerSpec, q: Tensor, k: Tensor) -> Array:
    """Attention [heads, T, T] of q [T, heads, D] over k [T, H, D], both before RoPE."""
    at = torch.arange(len(q))
    query = rotate(q.double(), at, spec.rope).transpose(0, 1)
    key = rotate(k.double(), at, seen.rope).transpose(0, 1).repeat_interleave(spec.group, 0)
    scores = query @ key.mT * spec.scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    scores = scores.masked_fill(~visible(at, at, seen), -torch.inf)
    return scores.softmax(-1).numpy()


def needed(row: list[float], share: float) -> int:
    """How few entries of a row sum up to ``share``."""
    total, count = 0.0, 0
    for value in sorted(row, reverse=True):
        total, count = total + value, count + 1
        if total >= share - 1e-9:
            break
    return count


def first_seen(row: Array) -> int:
    return int(np.flatnonzero(row)[0])


def entropy(row: Array) -> float:
    some = row[row > 0]
    return float(-(some * np.log(some)).sum())
