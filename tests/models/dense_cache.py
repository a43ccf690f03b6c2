"""The plainest cache there is: every key and value kept, full masked attention in float64."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from kvik.spec import LayerSpec, ModelSpec, Rope


def rotate(x: Tensor, positions: Tensor, rope: Rope | None) -> Tensor:
    """x [N, heads, D] in float64, rotated pair by pair as complex numbers."""
    if rope is None:
        return x
    angles = positions.double()[:, None, None] * torch.tensor(
        rope.frequencies(), dtype=torch.float64
    )
    turn = torch.polar(torch.full_like(angles, rope.attention_factor), angles)
    part = x[..., rope.offset : rope.offset + rope.dim]
    half = rope.dim // 2
    pairs = (
        part.unflatten(-1, (2, half)).mT if rope.layout == "half" else part.unflatten(-1, (half, 2))
    )
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    turned = (turned.mT if rope.layout == "half" else turned).flatten(-2)
    return torch.cat([x[..., : rope.offset], turned, x[..., rope.offset + rope.dim :]], dim=-1)


def visible(query: Tensor, key: Tensor, spec: LayerSpec) -> Tensor:
    """Mask [T queries, T keys] of absolute positions."""
    q, k = query[:, None], key[None, :]
    mask = k <= q
    if spec.kind == "sliding":
        mask &= k > q - spec.window
    elif spec.kind == "chunked":
        mask &= k // spec.window == q // spec.window
    return mask


class DenseCache:
    """``plan`` names the sequence and the position of each row; rows of a sequence adjoin."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.rows: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.seen: dict[int, Tensor] = {}
        self.states: dict[tuple[int, int], Tensor] = {}
        self.spans: list[tuple[int, int]] = []
        self.ids: list[int] = []

    def plan(self, sequences: Sequence[int], positions: Tensor) -> None:
        self.positions, self.spans, self.ids = positions, [], []
        for sequence, run in groupby(sequences):
            start = self.spans[-1][1] if self.spans else 0
            self.spans.append((start, start + len(list(run))))
            self.ids.append(sequence)
        assert len(set(self.ids)) == len(self.ids)
        for sequence, (start, end) in zip(self.ids, self.spans, strict=True):
            old = self.seen.get(sequence, positions[:0])
            self.seen[sequence] = torch.cat([old, positions[start:end]])

    def places(self, layers: Sequence[int]) -> None:
        """None: it has no pages."""

    def attend(
        self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        outs = []
        for sequence, (start, end) in zip(self.ids, self.spans, strict=True):
            if k is not None:
                new = k[start:end].double()
                values = (
                    new[..., : self.spec.layers[layer].v_dim]
                    if v is None
                    else v[start:end].double()
                )
                old = self.rows.get((layer, sequence), (new[:0], values[:0]))
                self.rows[layer, sequence] = torch.cat([old[0], new]), torch.cat([old[1], values])
            outs.append(
                self._attend(layer, sequence, q[start:end].double(), self.positions[start:end])
            )
        out, lse = (torch.cat(part) for part in zip(*outs, strict=True))
        return out.to(q.dtype), lse

    def _attend(self, layer: int, sequence: int, q: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        spec = self.spec.layers[layer]
        keys, values = self.rows[spec.source if spec.kind == "shared" else layer, sequence]
        positions = self.seen[sequence]
        q = rotate(q, at, spec.rope).transpose(0, 1)
        keys = rotate(keys, positions, spec.rope).transpose(0, 1).repeat_interleave(spec.group, 0)
        values = values.transpose(0, 1).repeat_interleave(spec.group, 0)
        scores = q @ keys.mT * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        scores = scores.masked_fill(~visible(at, positions, spec), -torch.inf)
        return (scores.softmax(-1) @ values).transpose(0, 1), scores.logsumexp(-1).mT

    def read_state(self, layer: int) -> Tensor:
        zero = torch.zeros(self.spec.layers[layer].state_shape)
        return torch.stack([self.states.get((layer, sequence), zero) for sequence in self.ids])

    def write_state(self, layer: int, state: Tensor) -> None:
        for sequence, value in zip(self.ids, state, strict=True):
            self.states[layer, sequence] = value

    def commit(self) -> None:
        self.spans, self.ids = [], []
