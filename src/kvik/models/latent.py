"""Multi-head latent attention: all heads read one cached row per token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvik.models.parts import Linear, RMSNorm, StepCache, Take
from kvik.spec import LayerSpec, ModelSpec


@dataclass(frozen=True)
class LatentAttention:
    """MLA (arXiv 2405.04434) in its absorbed form.

    A row holds ``v_dim`` normed latent channels, then ``k_dim - v_dim`` that carry the position
    (spec.rope rotates them at ``offset = v_dim``). The values are the latent channels themselves,
    so no v goes to the cache.
    """

    layer: int
    spec: LayerSpec
    q: Linear
    kv: Linear
    kv_norm: RMSNorm
    o: Linear

    @classmethod
    def build(cls, take: Take, model: ModelSpec, layer: int) -> LatentAttention:
        """Take the query, row and output projections and the norm of the latent part."""
        spec, prefix, hidden = model.layers[layer], f"layers.{layer}", model.hidden
        return cls(
            layer,
            spec,
            q=Linear.build(take, f"{prefix}.q_proj", spec.heads * spec.k_dim, hidden),
            kv=Linear.build(take, f"{prefix}.kv_proj", spec.k_dim, hidden),
            kv_norm=RMSNorm.build(take, f"{prefix}.kv_norm", spec.v_dim, model.norm_eps),
            o=Linear.build(take, f"{prefix}.o_proj", hidden, spec.heads * spec.v_dim),
        )

    def __call__(self, x: Tensor, cache: StepCache) -> Tensor:
        n, spec = x.shape[0], self.spec
        row = self.kv(x)
        row = torch.cat([self.kv_norm(row[:, : spec.v_dim]), row[:, spec.v_dim :]], dim=-1)
        q = self.q(x).view(n, spec.heads, spec.k_dim)
        out, _ = cache.attend(self.layer, q, row.unsqueeze(1), None)
        return self.o(out.reshape(n, spec.heads * spec.v_dim))
