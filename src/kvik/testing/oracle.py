"""The oracle: what a cache means, one token and one query at a time, in float64.

It knows no page, table, tile, chunk or step. For every query it lists the kept tokens, each as
(position, decoded K, decoded V), and attends to them with a plain softmax. Slow and obvious.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvik.ops import angles, rotate
from kvik.recipe import Codec, LayerPlan, Plan
from kvik.recipe.resolve import tail_codec
from kvik.spec.model import LayerSpec


@dataclass
class _Stream:
    """Every token a stream ever got, as its tail format holds it, and the codes it has closed."""

    codec: Codec
    raw: list[Tensor] = field(default_factory=list)
    decoded: list[Tensor] = field(default_factory=list)

    def add(self, x: Tensor) -> None:
        """x [H, D] float32; codes groups as they fill, each exactly once."""
        if not self.codec.immediate:
            held = tail_codec(self.codec)
            x = held.decode(held.encode(x.unsqueeze(1)))[:, 0]
        self.raw.append(x)
        group = self.codec.close_tokens
        if len(self.raw) % group == 0:
            whole = torch.stack(self.raw[-group:], 1)
            self.decoded += self.codec.decode(self.codec.encode(whole)).unbind(1)

    def seen(self, token: int, query: int) -> Tensor:
        """What the query sees of the token: its code once its group has closed."""
        group, residual = self.codec.close_tokens, self.codec.residual
        closes = (token // group + 1) * group - 1 + residual
        return self.decoded[token] if query >= closes else self.raw[token]


@dataclass
class _Layer:
    plan: LayerPlan
    k: _Stream
    v: _Stream
    kept: list[list[int]] = field(default_factory=list)
    mass: list[dict[int, float]] = field(default_factory=list)


class OracleCache:
    """A cache with the decoder's interface (plan, attend, commit) for one sequence."""

    def __init__(self, plan: Plan) -> None:
        self.resolved = plan
        self.length = self.count = 0
        self._states: dict[int, Tensor] = {}
        self._layers = [None if p is None else self._layer(p) for p in plan.layers]

    def _layer(self, plan: LayerPlan) -> _Layer:
        heads = plan.spec.kv_heads
        streams = (_Stream(plan.k), _Stream(plan.codec("v")))
        return _Layer(plan, *streams, [[] for _ in range(heads)], [{} for _ in range(heads)])

    def plan(self, count: int) -> None:
        """Starts a step of ``count`` tokens."""
        self.count = count
        self.positions = torch.arange(self.length, self.length + count)
        self.spans = [(0, count)]

    def commit(self) -> None:
        """Ends the step."""
        self.length += self.count

    def places(self, layers: Sequence[int]) -> None:
        """None: it has no pages."""

    def read_state(self, layer: int) -> Tensor:
        """The state [1, *state_shape]."""
        shape = self.resolved.spec.layers[layer].state_shape
        return self._states.get(layer, torch.zeros(1, *shape))

    def write_state(self, layer: int, state: Tensor) -> None:
        """Keeps the state as float32."""
        self._states[layer] = state.float()

    def attend(
        self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Attention of q [n, heads, D], token by token: each query sees its past and itself."""
        spec = self.resolved.spec.layers[layer]
        mine = self._layers[layer if spec.source is None else spec.source]
        assert mine is not None
        outs, lses = [], []
        for i in range(q.shape[0]):
            position = self.length + i
            if k is not None:
                self._add(mine, position, k[i], v[i] if v is not None else None)
            out, lse = self._query(mine, spec, position, q[i].double())
            outs.append(out)
            lses.append(lse)
        return torch.stack(outs).to(q.dtype), torch.stack(lses).to(q.dtype)

    def _add(self, mine: _Layer, position: int, k: Tensor, v: Tensor | None) -> None:
        k = k if mine.plan.k.pre_rope else _turn(k, mine.plan.spec, position)
        mine.k.add(k.float())
        if v is not None:
            mine.v.add(v.float())
        evicting = mine.plan.evicting
        for head, kept in enumerate(mine.kept):
            if evicting and position and position % evicting.interval == 0:
                self._evict(mine, head, position)
            kept.append(position)

    def _evict(self, mine: _Layer, head: int, seen: int) -> None:
        policy, kept, mass = mine.plan.evicting, mine.kept[head], mine.mass[head]
        assert policy is not None
        keep = min(len(kept), policy.budget(seen, mine.plan.index, head))
        positions = torch.tensor(kept)
        received = torch.tensor([mass.get(t, 0.0) for t in kept], dtype=torch.float32)
        chosen = policy.select(positions, received, keep, seen).tolist()
        kept[:] = [kept[i] for i in chosen]

    def tokens(self, layer: int, query: int, head: int) -> list[int]:
        """Positions of the kept tokens of a KV head that the query at position ``query`` sees."""
        mine = self._layers[layer]
        assert mine is not None
        return [t for t in mine.kept[head] if _visible(mine.plan, t, query)]

    def _rows(self, mine: _Layer, tokens: list[int], query: int) -> tuple[Tensor, Tensor]:
        """Decoded K [T, H, D] and V [T, H, Dv] of these tokens as the query sees them, in float64.

        K is rotated unless its codec keeps it before RoPE.
        """
        keys = torch.stack([mine.k.seen(t, query) for t in tokens]).double()
        if mine.plan.v is None:
            return keys, keys[..., : mine.plan.spec.v_dim]
        return keys, torch.stack([mine.v.seen(t, query) for t in tokens]).double()

    def _query(
        self, mine: _Layer, spec: LayerSpec, position: int, q: Tensor
    ) -> tuple[Tensor, Tensor]:
        plan = mine.plan
        groups = spec.heads // plan.spec.kv_heads
        near = _turn(q, spec, position)
        far = near
        if plan.kept.in_cache and plan.kept.span is not None:
            far = _turn(q, spec, min(position, plan.kept.span - 1))
        outs, lses = [], []
        for head in range(plan.spec.kv_heads):
            if head == 0 or plan.evicting:  # without eviction every head keeps the same tokens
                seen = self.tokens(plan.index, position, head)
                tokens, (k_rows, v_rows) = torch.tensor(seen), self._rows(mine, seen, position)
            keys, values = k_rows[:, head], v_rows[:, head]
            if plan.k.pre_rope and plan.spec.rope is not None:
                keys = rotate(keys, plan.spec.rope, *angles(plan.spec.rope, tokens, keys.dtype))
            mine_q = slice(head * groups, (head + 1) * groups)
            sink = tokens < plan.kept.sinks
            scores = torch.where(sink, far[mine_q] @ keys.T, near[mine_q] @ keys.T) * spec.scale
            if spec.softcap is not None:
                scores = spec.softcap * torch.tanh(scores / spec.softcap)
            weights = scores.softmax(-1)
            if plan.evicting:
                mass = mine.mass[head]
                for token, weight in zip(tokens.tolist(), weights.sum(0).tolist(), strict=True):
                    mass[token] = mass.get(token, 0.0) + weight
            outs.append(weights @ values)
            lses.append(scores.logsumexp(-1))
        return torch.cat(outs), torch.cat(lses)


def _visible(plan: LayerPlan, token: int, query: int) -> bool:
    kept = plan.kept
    if token > query:  # a layer that shares this cache asks after all tokens were added
        return False
    return kept.window is None or token < kept.sinks or query - token < kept.window


def _turn(x: Tensor, spec: LayerSpec, position: int) -> Tensor:
    if spec.rope is None:
        return x
    turn = angles(spec.rope, torch.tensor([position]), x.dtype)
    return rotate(x.unsqueeze(-2), spec.rope, *turn).squeeze(-2)
