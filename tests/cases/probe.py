"""A cache fed with values that tell which tokens a query saw."""

from __future__ import annotations

import torch
from torch import Tensor

from kvik.cache import KVCache, PagePool, Sequence
from kvik.recipe import Recipe
from kvik.spec.model import LayerSpec, ModelSpec, Rope

ROOM = 320


def one_layer(
    *, heads: int = 2, kv_heads: int = 1, window: int | None = None, dim: int = ROOM
) -> ModelSpec:
    """A model of one layer whose V is wide enough to hold a one-hot position."""
    kind = "full" if window is None else "sliding"
    layer = LayerSpec(kind, heads, kv_heads, 16, dim, window=window, rope=Rope(16, 1e4))
    return ModelSpec("probe", "llama", (layer,), 4096, 10, 32, 32)


class Probe:
    """Feeds zero queries and one-hot values, so the output is the mean over the tokens seen."""

    def __init__(self, recipe: str, spec: ModelSpec | None = None) -> None:
        self.spec = spec or one_layer()
        plan = Recipe.parse(recipe).resolve(self.spec)
        self.cache = KVCache(plan, PagePool(plan.page_bytes, 64 << 20, poison=True))
        self.cache.pool.buffer.fill_(0xFF)
        self.sequence = self.cache.create()

    def feed(self, count: int, sequence: Sequence | None = None) -> list[set[int]]:
        """Adds ``count`` tokens; for each, the positions that its query saw."""
        sequence = sequence or self.sequence
        start, layer = sequence.length, self.spec.layers[0]
        self.cache.plan([sequence], [count])
        q = torch.zeros(count, layer.heads, layer.k_dim)
        k = torch.zeros(count, layer.kv_heads, layer.k_dim)
        v = torch.nn.functional.one_hot(torch.arange(start, start + count), layer.v_dim).float()
        out, _ = self.cache.attend(0, q, k, v.unsqueeze(1).expand(-1, layer.kv_heads, -1))
        self.cache.commit()
        return [set(torch.nonzero(row).flatten().tolist()) for row in out[:, 0]]


def random_streams(spec: ModelSpec, count: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """q [T, heads, D], k [T, H, D] and v [T, H, Dv] for a one-layer model."""
    layer, generator = spec.layers[0], torch.Generator().manual_seed(seed)
    shapes = [
        (count, layer.heads, layer.k_dim),
        (count, layer.kv_heads, layer.k_dim),
        (count, layer.kv_heads, layer.v_dim),
    ]
    q, k, v = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return q, k, v


def run(
    recipe: str, spec: ModelSpec, streams: tuple[Tensor, Tensor, Tensor], cuts: list[int]
) -> Tensor:
    """Output [T, heads, Dv] of a sequence fed in pieces of the given sizes (the last repeats)."""
    plan = Recipe.parse(recipe).resolve(spec)
    cache = KVCache(plan, PagePool(plan.page_bytes, 64 << 20, poison=True))
    cache.pool.buffer.fill_(0xFF)
    sequence, outs, at, sizes = cache.create(), [], 0, list(cuts)
    while at < streams[0].shape[0]:
        size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        rows = slice(at, min(at + size, streams[0].shape[0]))
        cache.plan([sequence], [rows.stop - at])
        outs.append(cache.attend(0, *(s[rows] for s in streams))[0])
        cache.commit()
        at = rows.stop
    cache.free(sequence)
    assert cache.pool.stats().used == 0
    return torch.cat(outs)


def dense(spec: ModelSpec, streams: tuple[Tensor, Tensor, Tensor], seen: list[list[int]]) -> Tensor:
    """Plain float64 attention of every query over the positions listed for it."""
    layer = spec.layers[0]
    q, k, v = streams
    at = torch.arange(q.shape[0])
    q, k = turn(q, at), turn(k, at)
    rows = []
    for p, tokens in enumerate(seen):
        heads = []
        for h in range(layer.heads):
            g = h // layer.group
            weights = (k[tokens, g] @ q[p, h] * layer.scale).softmax(0)
            heads.append(weights @ v[tokens, g])
        rows.append(torch.stack(heads))
    return torch.stack(rows)


def turn(x: Tensor, positions: Tensor) -> Tensor:
    """RoPE of probe models (16 channels, base 10,000) by complex multiplication."""
    angle = positions[:, None].double() * 1e4 ** (-torch.arange(8).double() / 8)
    z = torch.complex(x[..., :8], x[..., 8:]) * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat((z.real, z.imag), -1)
