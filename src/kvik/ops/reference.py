"""Attention in plain torch: the definition of right that other backends are tested against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

QUERY_TILE = 256
KEY_TILE = 1024


@dataclass(frozen=True)
class Keys:
    """E cached entries of one layer for one sequence.

    ``k`` [H, E, D], ``v`` [H, E, Dv], both rotated and decoded. Entry e stands at ``position[e]``
    and is seen by the queries at positions ``first[e] <= p < until[e]``; the three are int64 [E].
    The first ``sinks`` entries are scored with the second query.
    """

    k: Tensor
    v: Tensor
    position: Tensor
    first: Tensor
    until: Tensor
    sinks: int = 0


@dataclass(frozen=True)
class Scoring:
    """How dot products become scores: ``scale`` first, then ``softcap * tanh(score / softcap)``."""

    scale: float
    softcap: float | None = None

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        """Scores [H, G * n, E] of queries [H, G * n, D] and keys [H, E, D]."""
        scores = torch.matmul(q * self.scale, k.transpose(-1, -2))
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        return scores


def attend(
    q: Tensor, positions: Tensor, keys: Keys, scoring: Scoring, q_sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention of ``q`` [H, G, n, D] at ``positions`` [n] over ``keys``.

    Returns the output [H, G, n, Dv] and the log-sum-exp [H, G, n] of the scores; a query that
    sees nothing gets zeros and -inf. Works in tiles with an online softmax
    (arXiv 1805.02867, 2205.14135), so memory stays linear in the number of entries.
    """
    outs, lses = [], []
    for start in range(0, q.shape[2], QUERY_TILE):
        rows = slice(start, start + QUERY_TILE)
        second = None if q_sinks is None else q_sinks[:, :, rows]
        out, lse = _attend_tile(q[:, :, rows], positions[rows], keys, scoring, second)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs, 2), torch.cat(lses, 2)


def _tiles(keys: Keys) -> list[slice]:
    """Key tiles; sinks have tiles of their own because another query scores them."""
    bounds = [(0, keys.sinks), (keys.sinks, keys.position.numel())]
    return [
        slice(i, min(i + KEY_TILE, high))
        for low, high in bounds
        for i in range(low, high, KEY_TILE)
    ]


def _scores(
    q: Tensor, positions: Tensor, keys: Keys, tile: slice, scoring: Scoring, second: Tensor | None
) -> Tensor | None:
    """Masked scores [H, G, n, tile], or None when no query sees any entry of the tile."""
    p = positions.unsqueeze(-1)
    seen = (keys.first[tile] <= p) & (p < keys.until[tile])
    if not bool(seen.any()):
        return None
    hidden = None if bool(seen.all()) else ~seen
    query = second if second is not None and tile.start < keys.sinks else q
    h, g, n, d = query.shape
    scores = scoring(query.reshape(h, g * n, d), keys.k[:, tile]).view(h, g, n, -1)
    return scores if hidden is None else scores.masked_fill_(hidden, float("-inf"))


def _attend_tile(
    q: Tensor, positions: Tensor, keys: Keys, scoring: Scoring, second: Tensor | None
) -> tuple[Tensor, Tensor]:
    h, g, n, _ = q.shape
    top = q.new_full((h, g, n), float("-inf"))
    total = q.new_zeros((h, g, n))
    out = q.new_zeros((h, g, n, keys.v.shape[-1]))
    for tile in _tiles(keys):
        scores = _scores(q, positions, keys, tile, scoring, second)
        if scores is None:
            continue
        new_top = torch.maximum(top, scores.amax(-1))
        # A row that has seen nothing yet has a maximum of -inf; 0 keeps the exponent defined.
        safe = torch.where(new_top.isinf(), torch.zeros_like(new_top), new_top)
        weights = scores.sub_(safe.unsqueeze(-1)).exp_()
        shrink = (top - safe).exp_()
        total = total * shrink + weights.sum(-1)
        part = torch.matmul(weights.view(h, g * n, -1), keys.v[:, tile]).view_as(out)
        out = out * shrink.unsqueeze(-1) + part
        top = new_top
    empty = total == 0
    out = out / total.masked_fill(empty, 1.0).unsqueeze(-1)
    return out, top + total.masked_fill(empty, 1.0).log()


def mass(
    q: Tensor,
    positions: Tensor,
    keys: Keys,
    scoring: Scoring,
    lse: Tensor,
    q_sinks: Tensor | None = None,
) -> Tensor:
    """Attention that each entry received, summed over G and the queries: [H, E] float64.

    A second pass over the scores with the known log-sum-exp, so memory stays linear.
    """
    received = q.new_zeros(keys.k.shape[:2], dtype=torch.float64)
    # A query that sees nothing has a log-sum-exp of -inf; 0 keeps the exponent defined.
    lse = lse.masked_fill(lse.isinf(), 0.0)
    for tile in _tiles(keys):
        for start in range(0, q.shape[2], QUERY_TILE):
            rows = slice(start, start + QUERY_TILE)
            second = None if q_sinks is None else q_sinks[:, :, rows]
            scores = _scores(q[:, :, rows], positions[rows], keys, tile, scoring, second)
            if scores is not None:
                weights = scores.sub_(lse[:, :, rows].unsqueeze(-1)).exp_()
                received[:, tile] += weights.double().sum((1, 2))
    return received


def merge(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Joins attention over disjoint sets of keys: parts are (output [..., Dv], log-sum-exp [...]).

    An empty part is (0, -inf). Exact up to rounding and independent of the order of the parts.
    """
    lses = torch.stack([lse for _, lse in parts])
    joint = torch.logsumexp(lses, 0)
    safe = torch.where(joint.isinf(), torch.zeros_like(joint), joint)
    out = sum((o * (lse - safe).exp().unsqueeze(-1) for o, lse in parts), torch.zeros(()))
    assert isinstance(out, Tensor)
    return out, joint
