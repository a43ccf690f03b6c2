"""The feed-forward network of a layer: one for all tokens, or a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from kvik.models.parts import Linear, Take
from kvik.spec import ModelSpec

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}


@dataclass(frozen=True)
class FeedForward:
    """The gated feed-forward network (arXiv 2002.05202)."""

    gate: Linear
    up: Linear
    down: Linear
    activation: str

    @classmethod
    def build(cls, take: Take, model: ModelSpec, layer: int) -> FeedForward:
        """Take the three projections of a layer."""
        return cls.named(take, model, f"layers.{layer}", model.ffn)

    @classmethod
    def named(cls, take: Take, model: ModelSpec, prefix: str, width: int) -> FeedForward:
        """Take the three projections below ``prefix``."""
        return cls(
            gate=Linear.build(take, f"{prefix}.gate_proj", width, model.hidden),
            up=Linear.build(take, f"{prefix}.up_proj", width, model.hidden),
            down=Linear.build(take, f"{prefix}.down_proj", model.hidden, width),
            activation=model.activation,
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(ACTIVATIONS[self.activation](self.gate(x)) * self.up(x))


@dataclass(frozen=True)
class Mixture:
    """Experts of which each token uses the most probable few (arXiv 2401.04088).

    Every token is added up over its experts in the order of their numbers, so that its result
    does not depend on the tokens beside it.
    """

    router: Linear
    experts: tuple[FeedForward, ...]
    used: int
    normed: bool

    @classmethod
    def build(cls, take: Take, model: ModelSpec, layer: int) -> Mixture:
        """Take the router and every expert of a layer."""
        spec, prefix = model.experts, f"layers.{layer}"
        assert spec is not None
        return cls(
            router=Linear.build(take, f"{prefix}.router", spec.count, model.hidden),
            experts=tuple(
                FeedForward.named(take, model, f"{prefix}.experts.{number}", spec.ffn)
                for number in range(spec.count)
            ),
            used=spec.used,
            normed=spec.normed,
        )

    def __call__(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(self.used, -1)
        if self.normed:
            weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for number in sorted(set(chosen.flatten().tolist())):
            rows, ranks = (chosen == number).nonzero(as_tuple=True)
            out.index_add_(0, rows, self.experts[number](x[rows]) * weights[rows, ranks, None])
        return out
