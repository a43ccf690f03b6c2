"""Codecs: how the numbers of one stream (K, V or a latent) are written into bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from kvik.errors import RecipeError
from kvik.recipe.stage import Slot, Stage

if TYPE_CHECKING:
    import torch

    from kvik.spec.model import LayerSpec

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
}
Stream = Literal["k", "v"]


@dataclass(frozen=True)
class Plane:
    """One array of a coded stream: ``shape`` items of ``dtype`` for each unit and KV head.

    A unit is one token, or one closed group of ``tokens`` tokens.
    """

    dtype: str
    shape: tuple[int, ...]
    tokens: int = 1

    @property
    def unit_bytes(self) -> int:
        """Bytes of one unit of one KV head."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class Codec(Stage):
    """Codes one stream of one layer.

    ``close_tokens`` tokens are encoded together; ``residual`` more tokens pass before that
    happens. Until then a token is held, and seen, in the float format ``tail``. Token t of a
    stream is seen through its code by queries from position ``closes_at(t)`` on, in prefill as
    in decode. ``pre_rope`` keys are coded before rotation and rotated when they are read.
    """

    slot: ClassVar[Slot] = Slot.CODEC
    stores: ClassVar[bool] = True

    @property
    def close_tokens(self) -> int:
        """Tokens encoded together."""
        return 1

    @property
    def residual(self) -> int:
        """Tokens that stay in full precision behind a closed group."""
        return 0

    @property
    def pre_rope(self) -> bool:
        """Whether keys are coded before rotation."""
        return False

    @property
    def tail(self) -> str:
        """Recipe name of the float format of tokens that are not closed yet."""
        return "fp16"

    @property
    def immediate(self) -> bool:
        """Whether every token is coded as soon as it arrives."""
        return self.close_tokens == 1 and self.residual == 0

    def closed(self, seen: int) -> int:
        """How many leading tokens are coded once ``seen`` tokens were seen."""
        group = self.close_tokens
        return max(0, (seen - self.residual) // group * group)

    def bind(self, layer: LayerSpec, stream: Stream) -> Codec:
        """The codec for one stream of one layer (with its calibration, if it has any)."""
        return self

    def planes(self, dim: int) -> Mapping[str, Plane]:
        """What is stored for a stream of ``dim`` channels."""
        raise NotImplementedError

    def encode(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Codes of ``x`` [H, T, D] float32, T a multiple of ``close_tokens``.

        Each plane comes as [H, T / plane.tokens, *plane.shape] and depends on nothing but the
        tokens of its own group.
        """
        raise NotImplementedError

    def decode(self, planes: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The [H, T, D] float32 values that the codes stand for."""
        raise NotImplementedError


@dataclass(frozen=True)
class Pair(Codec):
    """One codec for K and another for V, written ``int8/int4``."""

    k: Codec
    v: Codec

    def __post_init__(self) -> None:
        if isinstance(self.k, Pair) or isinstance(self.v, Pair):
            raise RecipeError("a pair has one codec for K and one for V: write int8/int4")

    @property
    def name(self) -> str:
        """The two names joined by a slash."""
        return f"{self.k.name}/{self.v.name}"

    def bind(self, layer: LayerSpec, stream: Stream) -> Codec:
        """The half that codes ``stream``."""
        return getattr(self, stream).bind(layer, stream)  # type: ignore[no-any-return]

    def check(self, layer: LayerSpec) -> list[str]:
        """The reasons of both halves, each for its own stream."""
        reasons = self.k.check(replace(layer, v_dim=layer.k_dim))
        reasons += self.v.check(replace(layer, k_dim=layer.v_dim))
        if not (self.k.stores and self.v.stores):
            reasons.append(f"'none' cannot be half of '{self}'; write 'none' for both K and V")
        if layer.kind == "latent":
            reasons.append(
                f"a latent layer stores one row for K and V, so '{self}' cannot code them apart; "
                f"write {self.k}"
            )
        return reasons

    def content(self) -> bytes:
        """The calibration of both halves."""
        return self.k.content() + b"/" + self.v.content()
