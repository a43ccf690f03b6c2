"""A layer of packed weights in two native calls: one before the cache, one after."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvik.models.attention import Attention
from kvik.models.parts import Linear, RMSNorm, StepCache
from kvik.ops.native_linear import LayerEnd, Norm, Packed, Projection

if TYPE_CHECKING:
    from kvik.models.decoder import Layer


@dataclass(frozen=True)
class PackedLayer:
    """Computes what ``layer`` does, its norms and activation inside the native calls."""

    layer: Layer

    @staticmethod
    def fits(layer: Layer) -> bool:
        """Whether it is an attention layer whose matrices are all packed."""
        if not isinstance(layer.mixer, Attention):
            return False
        ffn, mixer = layer.ffn, layer.mixer
        maps = (mixer.q, *(mixer.kv or ()), mixer.o, ffn.gate, ffn.up, ffn.down)
        return all(isinstance(each.weight, Packed) for each in maps)

    def __call__(self, x: Tensor, cache: StepCache) -> Tensor:
        mixer, spec = self._mixer, self._mixer.spec
        n, groups = x.shape[0], self._groups
        mixed = self._before(x)
        if len(groups) == 1:
            q, k, v = mixed.view(n, spec.heads, spec.k_dim), None, None
        elif spec.k_dim == spec.v_dim:
            q, k, v = torch.split(mixed.view(n, -1, spec.k_dim), groups, 1)
        else:
            q, k, v = (
                part.view(n, heads, -1)
                for part, heads in zip(torch.split(mixed, self._widths, 1), groups, strict=True)
            )
        out, _ = cache.attend(mixer.layer, q, k, v)
        return self._after(out.reshape(n, -1), x)

    @property
    def _mixer(self) -> Attention:
        assert isinstance(self.layer.mixer, Attention)
        return self.layer.mixer

    @cached_property
    def _groups(self) -> list[int]:
        """Heads of each of the maps before the cache."""
        spec = self._mixer.spec
        return [spec.heads] if self._mixer.kv is None else [spec.heads, *[spec.kv_heads] * 2]

    @cached_property
    def _widths(self) -> list[int]:
        """Outputs of each of them."""
        maps = (self._mixer.q, *(self._mixer.kv or ()))
        return [each.weight.shape[0] for each in maps]

    @cached_property
    def _before(self) -> Projection:
        """The norm, queries, keys and values, and the norms of their heads."""
        mixer = self._mixer
        maps = (mixer.q, *(mixer.kv or ()))
        return Projection(
            [_packed(each) for each in maps],
            [each.bias for each in maps],
            norm=_norm(self.layer.mixer_norm),
            head_norms=[_norm(mixer.q_norm), _norm(mixer.k_norm), None][: len(maps)],
            head_dim=mixer.spec.k_dim,
        )

    @cached_property
    def _after(self) -> LayerEnd:
        """The output of attention, added, and the feed-forward network, added."""
        layer, ffn = self.layer, self.layer.ffn
        norm = _norm(layer.ffn_norm)
        assert norm is not None
        return LayerEnd(
            *(_packed(each) for each in (self._mixer.o, ffn.gate, ffn.up, ffn.down)),
            activation=ffn.activation,
            ffn_norm=norm,
            post_mixer_norm=_norm(layer.post_mixer_norm),
            post_ffn_norm=_norm(layer.post_ffn_norm),
            o_bias=self._mixer.o.bias,
        )


def _packed(part: Linear) -> Packed:
    assert isinstance(part.weight, Packed)
    return part.weight


def _norm(part: RMSNorm | None) -> Norm | None:
    return None if part is None else (part.weight, part.eps)
