"""Where the attention of one layer goes: its weights in blocks, and the figures made from them.

All weights of a layer would be heads x T x T numbers. They are made for a few queries at a time,
turned into sums and counts, and dropped, so memory stays linear in T.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvik.ops import Scoring
from kvik.spec.model import LayerSpec

# Weights held at once; all that is made of them takes some thirty times 4 bytes for each.
BLOCK = 1 << 19
SINKS = (1, 4)
SHARES = (0.9, 0.99)
QUANTILES = (0.1, 0.5, 0.9)
# A share is reached when rounding alone is missing.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Block:
    """Attention weights [H, G, n, E] of the queries ``start .. start + n`` over E keys.

    The keys are those at the positions ``low .. low + E``; what a query does not see has weight 0.
    """

    start: int
    low: int
    weights: Tensor

    @property
    def queries(self) -> Tensor:
        """Positions [n] of the queries."""
        return torch.arange(self.start, self.start + self.weights.shape[2])


@dataclass(frozen=True)
class Attention:
    """Means over the counted queries of a layer; every tensor is float64.

    ``seen`` is how many tokens a counted query sees on average. ``sink[n]`` [heads] is the share
    of attention on the first n tokens, over the ``sink_queries`` counted queries that still see
    them; empty where there are none. ``needed[share]`` [heads, 1 + QUANTILES] is how few tokens
    hold that share: the mean and the quantiles over queries. ``window[W]`` and ``streaming[W]``
    [heads] are the shares on the last W tokens, and on those and the first 4. ``entropy`` [heads]
    is in nats. ``early`` and ``late`` [H, T] are the attention that each token received from the
    queries before and from the middle on, summed over queries and the G heads of a KV head.
    """

    queries: int
    seen: float
    sink_queries: int
    sink: dict[int, Tensor]
    needed: dict[float, Tensor]
    window: dict[int, Tensor]
    streaming: dict[int, Tensor]
    entropy: Tensor
    early: Tensor
    late: Tensor


def seen_from(queries: Tensor, spec: LayerSpec) -> Tensor:
    """First position [n] that queries at the positions ``queries`` [n] see."""
    if spec.window is None:
        return torch.zeros_like(queries)
    if spec.kind == "chunked":
        return queries // spec.window * spec.window
    return (queries - spec.window + 1).clamp(min=0)


def blocks(
    q: Tensor, k: Tensor, spec: LayerSpec, scoring: Scoring, start: int = 0
) -> Iterator[Block]:
    """The weights of ``q`` [H, G, T, D] from ``start`` on over ``k`` [H, T, D], in order.

    Both are rotated. ``spec`` says what a query sees: that of the layer which stored the keys.
    """
    heads, group, tokens, dim = q.shape
    while start < tokens:
        low = int(seen_from(torch.tensor([start]), spec))
        # As many queries as fit with the keys that the last of them sees.
        width = start - low + 1
        count = min(tokens - start, max(1, BLOCK // (heads * group * (width + 64))), 256)
        stop = start + count
        keys = torch.arange(low, stop)
        queries = torch.arange(start, stop)
        part = q[:, :, start:stop].reshape(heads, group * count, dim)
        scores = scoring(part, k[:, low:stop]).view(heads, group, count, -1)
        hidden = (keys > queries[:, None]) | (keys < seen_from(queries, spec)[:, None])
        yield Block(start, low, scores.masked_fill_(hidden, -torch.inf).softmax(-1))
        start = stop


def window_sizes(tokens: int) -> tuple[int, ...]:
    """The windows that are looked at in a text of ``tokens`` tokens: 16, 64, 256 and so on."""
    return tuple(w for w in (16, 64, 256, 1024, 4096, 16384, 65536) if w <= tokens // 2)


def attention(parts: Iterator[Block], spec: LayerSpec, tokens: int) -> Attention:
    """The figures of a layer whose weights are ``parts``, of a text of ``tokens`` tokens.

    Queries from the middle of the text on are counted; those before it see few tokens, and only
    add to ``early``.
    """
    middle, totals = tokens // 2, _Totals(spec, tokens)
    for part in parts:
        early = max(0, min(middle - part.start, part.weights.shape[2]))
        totals.receive(part.low, part.weights[:, :, :early], part.weights[:, :, early:])
        if early < part.weights.shape[2]:
            totals.count(Block(part.start + early, part.low, part.weights[:, :, early:]))
    return totals.figures()


class _Totals:
    """Sums over the queries so far."""

    def __init__(self, spec: LayerSpec, tokens: int) -> None:
        heads, group = spec.kv_heads, spec.group
        zero = torch.zeros(heads, group, dtype=torch.float64)
        self.spec, self.heads, self.group = spec, heads, group
        self.queries, self.seen, self.sink_queries = 0, 0, 0
        self.sink = {n: zero.clone() for n in SINKS}
        self.window = {w: zero.clone() for w in window_sizes(tokens)}
        self.streaming = {w: zero.clone() for w in self.window}
        self.entropy = zero.clone()
        self.needed: dict[float, list[Tensor]] = {share: [] for share in SHARES}
        self.early = torch.zeros(heads, tokens, dtype=torch.float64)
        self.late = torch.zeros(heads, tokens, dtype=torch.float64)

    def receive(self, low: int, early: Tensor, late: Tensor) -> None:
        """Adds up what each token received."""
        for total, weights in ((self.early, early), (self.late, late)):
            total[:, low : low + weights.shape[-1]] += weights.sum((1, 2), dtype=torch.float64)

    def count(self, part: Block) -> None:
        """Adds counted queries."""
        at, first = part.queries, seen_from(part.queries, self.spec)
        self.queries += len(at)
        self.seen += int((at - first + 1).sum())
        self.entropy += torch.special.entr(part.weights).sum(-1, dtype=torch.float64).sum(-1)
        upto = _Upto(part)
        sees_first = first == 0
        self.sink_queries += int(sees_first.sum())
        for n in SINKS:
            self.sink[n] += upto(torch.full_like(at, n))[..., sees_first].sum(-1)
        sinks = upto(torch.full_like(at, SINKS[-1]))
        for w in self.window:
            before = upto(at - w + 1)
            self.window[w] += (upto.whole - before).sum(-1)
            self.streaming[w] += (upto.whole - before + torch.minimum(before, sinks)).sum(-1)
        ranked = _descending(part.weights).cumsum(-1, dtype=torch.float64)
        for share, counts in self.needed.items():
            counts.append((ranked < share - ROUNDING).sum(-1, dtype=torch.int32) + 1)

    def figures(self) -> Attention:
        """Means of what was counted."""
        n, most = self.queries, max(1, self.sink_queries)

        def means(sums: dict[int, Tensor], queries: int) -> dict[int, Tensor]:
            return {key: total.flatten() / queries for key, total in sums.items()}

        return Attention(
            queries=n,
            seen=self.seen / n,
            sink_queries=self.sink_queries,
            sink=means(self.sink, most) if self.sink_queries else {},
            needed={share: _spread(torch.cat(c, -1)) for share, c in self.needed.items()},
            window=means(self.window, n),
            streaming=means(self.streaming, n),
            entropy=self.entropy.flatten() / n,
            early=self.early,
            late=self.late,
        )


class _Upto:
    """Attention [H, G, n] of each query of a block on the tokens before a position."""

    def __init__(self, part: Block) -> None:
        self._low = part.low
        sums = part.weights.cumsum(-1, dtype=torch.float64)
        self._sums = torch.nn.functional.pad(sums, (1, 0))
        self.whole = self._sums[..., -1]

    def __call__(self, position: Tensor) -> Tensor:
        """``position`` [n], one for each query."""
        index = (position - self._low).clamp(0, self._sums.shape[-1] - 1)
        heads, group, n, _ = self._sums.shape
        return self._sums.gather(-1, index[:, None].expand(heads, group, n, 1)).squeeze(-1)


def _descending(weights: Tensor) -> Tensor:
    """``weights`` sorted; numpy's sort takes a tenth of the time of torch's."""
    return torch.from_numpy(np.sort(weights.numpy(), axis=-1)).flip(-1)


def _spread(counts: Tensor) -> Tensor:
    """Mean and quantiles [heads, 1 + QUANTILES] of counts [H, G, queries]."""
    flat = counts.flatten(0, 1).double()
    at = torch.tensor(QUANTILES, dtype=torch.float64)
    return torch.cat([flat.mean(-1, keepdim=True), flat.quantile(at, dim=-1).T], -1)
