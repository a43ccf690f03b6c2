"""A layer of packed weights in two native calls: one before the cache, one after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvik.models.attention import Attention
from kvik.models.feed_forward import FeedForward
from kvik.models.parts import Linear, RMSNorm, StepCache
from kvik.ops.native_layers import Ends
from kvik.ops.native_linear import LayerEnd, Norm, Packed, Projection

if TYPE_CHECKING:
    from kvik.models.decoder import Layer

Parts = tuple[Tensor, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class PackedLayer:
    """Computes what ``layer`` does, its norms and activation inside the native calls."""

    layer: Layer

    @staticmethod
    def fits(layer: Layer) -> bool:
        """Whether it is an attention layer with one feed-forward network, its matrices packed."""
        ffn, mixer = layer.ffn, layer.mixer
        if not isinstance(mixer, Attention) or not isinstance(ffn, FeedForward):
            return False
        maps = (mixer.q, *(mixer.kv or ()), mixer.o, ffn.gate, ffn.up, ffn.down)
        return all(isinstance(each.weight, Packed) for each in maps)

    def __call__(self, x: Tensor, cache: StepCache) -> Tensor:
        out, _ = cache.attend(self.index, *self._split(x))
        return self._after(out.reshape(x.shape[0], -1), x)

    @cached_property
    def index(self) -> int:
        """Which of the model's layers it is."""
        return self._mixer.layer

    @property
    def ends(self) -> Ends:
        """What it does before the cache and after it."""
        return Ends(self._before, self._after)

    @cached_property
    def _split(self) -> Callable[[Tensor], Parts]:
        """Queries, keys and values [n, heads, dim] of an input: views of one tensor."""
        # A closure: what it needs is looked up once and not in every step.
        before, spec, counts = self._before, self._mixer.spec, self._heads
        heads, dim, split = sum(counts), spec.k_dim, torch.split
        if len(counts) == 1:
            return lambda x: (before(x, heads, dim), None, None)
        if dim == spec.v_dim:

            def views(x: Tensor) -> Parts:
                q, k, v = split(before(x, heads, dim), counts, 1)
                return q, k, v

            return views
        widths = [each.weight.shape[0] for each in self._maps]

        def parts(x: Tensor) -> Parts:
            q, k, v = (
                part.view(len(x), count, -1)
                for part, count in zip(split(before(x), widths, 1), counts, strict=True)
            )
            return q, k, v

        return parts

    @property
    def _mixer(self) -> Attention:
        assert isinstance(self.layer.mixer, Attention)
        return self.layer.mixer

    @property
    def _maps(self) -> tuple[Linear, ...]:
        """The maps before the cache."""
        return (self._mixer.q, *(self._mixer.kv or ()))

    @property
    def _heads(self) -> list[int]:
        """Heads of each of them."""
        spec = self._mixer.spec
        return [spec.heads, spec.kv_heads, spec.kv_heads][: len(self._maps)]

    @cached_property
    def _before(self) -> Projection:
        """The norm, queries, keys and values, and the norms of their heads."""
        mixer, maps = self._mixer, self._maps
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
        assert isinstance(ffn, FeedForward)
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
