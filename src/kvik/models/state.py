"""A layer that keeps a fixed-size state for each sequence and no tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvik.models.parts import Linear, StepCache, Take
from kvik.spec import ModelSpec


@dataclass(frozen=True)
class GatedRecurrence:
    """Gated linear attention (arXiv 2312.06635) with one gate per head.

    The state S [heads, k, v] follows ``S_t = g_t S_(t-1) + k_t v_t^T``, the output is ``q_t S_t``.
    """

    layer: int
    shape: tuple[int, int, int]
    q: Linear
    k: Linear
    v: Linear
    gate: Linear
    o: Linear

    @classmethod
    def build(cls, take: Take, model: ModelSpec, layer: int) -> GatedRecurrence:
        """Take the projections of a layer whose ``state_shape`` is (heads, k, v)."""
        (heads, k, v), prefix = model.layers[layer].state_shape, f"layers.{layer}"

        def project(name: str, out: int, into: int = model.hidden) -> Linear:
            return Linear.build(take, f"{prefix}.{name}_proj", out, into)

        return cls(
            layer,
            (heads, k, v),
            q=project("q", heads * k),
            k=project("k", heads * k),
            v=project("v", heads * v),
            gate=project("decay", heads),
            o=project("o", model.hidden, heads * v),
        )

    def __call__(self, x: Tensor, cache: StepCache) -> Tensor:
        n, (heads, k_dim, v_dim) = x.shape[0], self.shape
        q = self.q(x).view(n, heads, k_dim)
        update = torch.einsum(
            "nhk,nhv->nhkv",
            self.k(x).view(n, heads, k_dim) * k_dim**-0.5,
            self.v(x).view(n, heads, v_dim),
        )
        gate = torch.sigmoid(self.gate(x))[:, :, None, None]
        states, after, out = cache.read_state(self.layer), [], x.new_empty(n, heads, v_dim)
        for state, (start, end) in zip(states, cache.spans, strict=True):
            for t in range(start, end):
                # Rounded to what is stored at every token, so that chunks end in the same state.
                state = (gate[t] * state + update[t]).to(states.dtype)
                out[t] = torch.einsum("hk,hkv->hv", q[t], state.to(q.dtype))
            after.append(state)
        cache.write_state(self.layer, torch.stack(after))
        return self.o(out.reshape(n, heads * v_dim))
