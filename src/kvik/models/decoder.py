"""The decoder: one forward pass over a flat batch, driven by a ModelSpec alone.

It holds plain tensors and no state; all that lasts from step to step is the cache's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn import functional

from kvik.errors import ModelError
from kvik.models.attention import Attention
from kvik.models.feed_forward import FeedForward, Mixture
from kvik.models.latent import LatentAttention
from kvik.models.packed_layer import PackedLayer
from kvik.models.packed_run import PackedRun, runs
from kvik.models.parts import Linear, Mixer, Numbers, RMSNorm, StepCache, Take, Weight, Weights
from kvik.models.state import GatedRecurrence
from kvik.ops.native_linear import Packed, Projection
from kvik.spec import ModelSpec

MIXERS: dict[str, Callable[[Take, ModelSpec, int], Mixer]] = {
    "full": Attention.build,
    "sliding": Attention.build,
    "chunked": Attention.build,
    "shared": Attention.build,
    "latent": LatentAttention.build,
    "state": GatedRecurrence.build,
}


@dataclass(frozen=True)
class Layer:
    """Mixer and feed-forward, each normed before (and after, with ``post_norms``) and added."""

    mixer_norm: RMSNorm
    mixer: Mixer
    post_mixer_norm: RMSNorm | None
    ffn_norm: RMSNorm
    ffn: FeedForward | Mixture
    post_ffn_norm: RMSNorm | None

    @classmethod
    def build(cls, take: Take, model: ModelSpec, layer: int) -> Layer:
        """Take one layer's weights."""

        def norm(name: str) -> RMSNorm:
            return RMSNorm.build(take, f"layers.{layer}.{name}_norm", model.hidden, model.norm_eps)

        network = Mixture.build if model.has_experts(layer) else FeedForward.build
        return cls(
            mixer_norm=norm("attn"),
            mixer=MIXERS[model.layers[layer].kind](take, model, layer),
            post_mixer_norm=norm("post_attn") if model.post_norms else None,
            ffn_norm=norm("ffn"),
            ffn=network(take, model, layer),
            post_ffn_norm=norm("post_ffn") if model.post_norms else None,
        )

    def __call__(self, x: Tensor, cache: StepCache) -> Tensor:
        mixed = self.mixer(self.mixer_norm(x), cache)
        x = x + (mixed if self.post_mixer_norm is None else self.post_mixer_norm(mixed))
        fed = self.ffn(self.ffn_norm(x))
        return x + (fed if self.post_ffn_norm is None else self.post_ffn_norm(fed))


@dataclass(frozen=True)
class Decoder:
    """A model's weights, in the shape in which ``forward`` uses them."""

    spec: ModelSpec
    embed: Weight
    layers: tuple[Layer | PackedLayer, ...]
    norm: RMSNorm
    head: Linear

    @classmethod
    def build(cls, take: Take, spec: ModelSpec) -> Decoder:
        """Take every weight that ``spec`` implies, shared and not copied.

        Without their gradients: so nothing that is computed from them has any, and no step has to
        switch them off.
        """
        take = partial(_detached, take)
        embed = take("embed.weight", (spec.vocab, spec.hidden))
        return cls(
            spec,
            embed,
            tuple(_fastest(Layer.build(take, spec, i)) for i in range(len(spec.layers))),
            RMSNorm.build(take, "norm", spec.hidden, spec.norm_eps),
            Linear(embed) if spec.tied else Linear.build(take, "lm_head", spec.vocab, spec.hidden),
        )

    @classmethod
    def from_weights(cls, spec: ModelSpec, weights: Mapping[str, Weight]) -> Decoder:
        """Build from tensors under their canonical names; ModelError when they do not fit."""
        take = Weights(weights)
        decoder = cls.build(take, spec)
        take.finish()
        if len(dtypes := {tensor.dtype for tensor in weights.values()}) > 1:
            raise ModelError(
                f"a model's tensors share one dtype; these have {sorted(map(str, dtypes))}"
            )
        return decoder

    @property
    def dtype(self) -> torch.dtype:
        """What the forward pass computes in."""
        return self.embed.dtype

    @property
    def arithmetic(self) -> str:
        """Names what decides about the bits of K and V beside the weights themselves."""
        return "packed 1" if isinstance(self.embed, Packed) else str(self.dtype)

    def forward(
        self, tokens: Numbers, positions: Numbers, cache: StepCache, rows: Tensor | None = None
    ) -> Tensor:
        """Logits [N, vocab] of N tokens, or [len(rows), vocab] of those rows, in ``dtype``.

        ``tokens`` and ``positions`` stand in the order of the cache's planned step. The
        vocabulary is large: ask for the rows you need, none at all (an empty ``rows``) included.
        """
        ids = _plain(tokens)
        self._check(ids, positions, rows)
        x = self._embedded(ids)
        for run in self._runs:
            x = run(x, cache)
        logits = self._logits(x if rows is None else x[rows])
        if (cap := self.spec.final_softcap) is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits

    @cached_property
    def _runs(self) -> list[Layer | PackedRun]:
        return runs(self.layers)

    def _embedded(self, ids: Sequence[int]) -> Tensor:
        if isinstance(self.embed, Packed):
            return self.embed.rows(ids, self.spec.embed_scale)
        x = functional.embedding(torch.tensor(ids), self.embed)
        return x if self.spec.embed_scale == 1.0 else x * self.spec.embed_scale

    @cached_property
    def _logits(self) -> Callable[[Tensor], Tensor]:
        """The last norm and the output matrix."""
        norm, head = self.norm, self.head
        if isinstance(head.weight, Packed):
            return Projection([head.weight], [head.bias], norm=(norm.weight, norm.eps))
        return lambda x: head(norm(x))

    def _check(self, ids: Sequence[int], positions: Numbers, rows: Tensor | None) -> None:
        if len(positions) != len(ids):
            raise ModelError(f"{len(ids)} tokens come with {len(positions)} positions")
        low, high = min(ids), max(ids)
        if low < 0 or high >= self.spec.vocab:
            raise ModelError(
                f"the token id {low if low < 0 else high} is outside the vocabulary of "
                f"{self.spec.vocab}; was the text encoded with another model's tokenizer?"
            )
        if rows is not None and rows.numel():
            wanted = rows.tolist()
            first, last = min(wanted), max(wanted)
            if first < 0 or last >= len(ids):
                raise ModelError(f"rows {first} to {last} of a step of {len(ids)} tokens")


def _plain(tokens: Numbers) -> Sequence[int]:
    """As plain numbers: of a few tokens torch takes longer for a look than all the rest does."""
    if isinstance(tokens, Tensor):
        if tokens.dim() != 1 or tokens.numel() == 0 or tokens.dtype != torch.int64:
            raise ModelError(
                f"a step takes at least one token as int64 [N], not {tokens.dtype} "
                f"{list(tokens.shape)}"
            )
        found: list[int] = tokens.tolist()
        return found
    if not tokens:
        raise ModelError("a step takes at least one token")
    return tokens


def _detached(take: Take, name: str, shape: tuple[int, ...]) -> Weight:
    weight = take(name, shape)
    return weight.detach() if isinstance(weight, Tensor) else weight


def _fastest(layer: Layer) -> Layer | PackedLayer:
    """The layer, in few native calls where its weights are packed for them."""
    return PackedLayer(layer) if PackedLayer.fits(layer) else layer
