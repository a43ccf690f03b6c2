"""Multi-head attention with grouped queries, for full, sliding, chunked and shared layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvik.models.parts import Linear, RMSNorm, StepCache, Take
from kvik.spec import LayerSpec, ModelSpec


@dataclass(frozen=True)
class Attention:
    """Queries, keys and values for the cache (GQA, arXiv 2305.13245); no RoPE and no mask here.

    A shared layer has queries alone and reads what its source layer stored.
    """

    layer: int
    spec: LayerSpec
    q: Linear
    kv: tuple[Linear, Linear] | None
    o: Linear
    q_norm: RMSNorm | None
    k_norm: RMSNorm | None

    @classmethod
    def build(cls, take: Take, model: ModelSpec, layer: int) -> Attention:
        """Take the projections and, with ``qk_norm``, the norms of a layer."""
        spec, prefix = model.layers[layer], f"layers.{layer}"

        def project(name: str, out: int, into: int) -> Linear:
            biased = name in model.attention_bias
            return Linear.build(take, f"{prefix}.{name}_proj", out, into, biased)

        def norm(name: str) -> RMSNorm:
            return RMSNorm.build(take, f"{prefix}.{name}_norm", spec.k_dim, model.norm_eps)

        shared = spec.kind == "shared"
        return cls(
            layer,
            spec,
            q=project("q", spec.heads * spec.k_dim, model.hidden),
            kv=None
            if shared
            else (
                project("k", spec.kv_heads * spec.k_dim, model.hidden),
                project("v", spec.kv_heads * spec.v_dim, model.hidden),
            ),
            o=project("o", model.hidden, spec.heads * spec.v_dim),
            q_norm=norm("q") if model.qk_norm else None,
            k_norm=norm("k") if model.qk_norm and not shared else None,
        )

    def __call__(self, x: Tensor, cache: StepCache) -> Tensor:
        n, spec = x.shape[0], self.spec
        q = self.q(x).view(n, spec.heads, spec.k_dim)
        if self.q_norm is not None:
            q = self.q_norm(q)
        k = v = None
        if self.kv is not None:
            k = self.kv[0](x).view(n, spec.kv_heads, spec.k_dim)
            v = self.kv[1](x).view(n, spec.kv_heads, spec.v_dim)
            if self.k_norm is not None:
                k = self.k_norm(k)
        out, _ = cache.attend(self.layer, q, k, v)
        return self.o(out.reshape(n, spec.heads * spec.v_dim))
