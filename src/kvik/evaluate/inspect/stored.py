"""What K and V of one layer look like: channels, ranges, 4-bit errors, likeness, rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kvik.evaluate.inspect.coded import WAYS, coded, group_of

# How many times the median channel's magnitude makes an outlier.
OUTLIER = 4.0
ENERGY = 0.99
# Widest row, over all heads, whose singular values are worked out: its Gram matrix has 128 MiB.
WIDEST = 4096


@dataclass(frozen=True)
class Stream:
    """Figures of K before RoPE, of K after it, or of V; [H] each unless said.

    ``channels`` [H, D] is the root mean square of every channel over the tokens, ``outlier`` the
    largest of them over the median, ``steady`` the share of energy that the mean over the tokens
    holds: what subtracting it removes. ``errors`` are squared errors of 4-bit codes over the
    energy, by way: ``token`` and ``channel`` (:func:`coded`), in groups of ``group``.
    """

    channels: Tensor
    outlier: Tensor
    steady: Tensor
    least: Tensor
    most: Tensor
    std: Tensor
    group: int
    errors: dict[str, Tensor]


@dataclass(frozen=True)
class Stored:
    """Figures of what a layer caches.

    ``streams`` has ``k``, ``k_rope`` and ``v``. ``neighbours`` [H] is the mean cosine between the
    keys of a token and the next, ``mean_key`` [H] that between a key and the mean of all, both
    before and after RoPE. ``rank`` says how many directions hold 99 % of the energy of all heads
    together, of the ``width`` that there are; ``kv`` is K before RoPE beside V, each scaled to the
    same energy. It is empty where rows are wider than ``WIDEST``.
    """

    streams: dict[str, Stream]
    neighbours: dict[str, Tensor]
    mean_key: dict[str, Tensor]
    rank: dict[str, int]
    width: dict[str, int]


def stored(k: Tensor, k_rope: Tensor, v: Tensor) -> Stored:
    """Figures of ``k`` before and after RoPE [H, T, D] and ``v`` [H, T, Dv]."""
    streams = {"k": k.double(), "k_rope": k_rope.double(), "v": v.double()}
    rows = {name: x.transpose(0, 1).flatten(1) for name, x in streams.items()}
    rows["kv"] = torch.cat([rows[name] / _size(rows[name]) for name in ("k", "v")], 1)
    narrow = {name: x for name, x in rows.items() if x.shape[1] <= WIDEST}
    keys = {name: streams[name] for name in ("k", "k_rope")}
    return Stored(
        streams={name: _stream(x) for name, x in streams.items()},
        neighbours={
            name: functional.cosine_similarity(x[:, :-1], x[:, 1:], dim=-1).mean(-1)
            for name, x in keys.items()
        },
        mean_key={
            name: functional.cosine_similarity(
                x, functional.normalize(x, dim=-1).mean(1, keepdim=True), dim=-1
            ).mean(-1)
            for name, x in keys.items()
        },
        rank={name: rank(x) for name, x in narrow.items()},
        width={name: x.shape[1] for name, x in narrow.items()},
    )


def _stream(x: Tensor) -> Stream:
    channels = x.square().mean(1).sqrt()
    energy = x.square().sum((1, 2)).clamp(min=torch.finfo(torch.float64).tiny)
    median = channels.median(-1).values.clamp(min=torch.finfo(torch.float64).tiny)
    group = group_of(x.shape[-1])
    return Stream(
        channels=channels,
        outlier=channels.amax(-1) / median,
        steady=x.mean(1).square().sum(-1) * x.shape[1] / energy,
        least=x.amin((1, 2)),
        most=x.amax((1, 2)),
        std=x.std((1, 2), correction=0),
        group=group,
        errors={
            way: (coded(x, way) - x).square().sum((1, 2)) / energy for way in WAYS if group > 1
        },
    )


def outliers(channels: Tensor) -> list[list[int]]:
    """For each head of ``channels`` [H, D], those above ``OUTLIER`` medians, largest first."""
    above = channels > OUTLIER * channels.median(-1, keepdim=True).values
    order = channels.argsort(-1, descending=True)
    return [o[: int(a.sum())].tolist() for o, a in zip(order, above, strict=True)]


def rank(rows: Tensor, energy: float = ENERGY) -> int:
    """How few directions of ``rows`` [T, width] hold that share of their energy."""
    # Eigenvalues of the Gram matrix are the squares of the singular values.
    values = torch.linalg.eigvalsh(rows.T @ rows).flip(0).clamp(min=0)
    total = values.cumsum(0)
    return int((total < energy * total[-1]).sum()) + 1


def _size(x: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(x)
    return size.clamp(min=torch.finfo(torch.float64).tiny)
