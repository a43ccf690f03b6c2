"""Small real stages that exist to prove the seams; registered like any plug-in's, on import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kvik.recipe import Codec, Evicting, Plane, arg


@dataclass(frozen=True)
class PerChannel(Codec):
    """4-bit codes per channel over groups of tokens, newer tokens in full precision (KIVI)."""

    names: ClassVar = {"perchannel": {}}
    examples: ClassVar = (
        "perchannel",
        "perchannel:8,residual=0",
        "perchannel:4,residual=7,raw",
        "perchannel:1,residual=6",
    )

    group: int = arg(8, positional=True, minimum=1)
    residual: int = arg(5, minimum=0)
    raw: bool = arg(False)

    @property
    def close_tokens(self) -> int:
        return self.group

    @property
    def pre_rope(self) -> bool:
        return self.raw

    def planes(self, dim: int) -> Mapping[str, Plane]:
        group = self.group
        return {
            "code": Plane("uint8", (group, dim), group),
            "scale": Plane("float32", (dim,), group),
            "low": Plane("float32", (dim,), group),
        }

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        groups = x.unflatten(1, (-1, self.group))
        low, high = groups.amin(2), groups.amax(2)
        scale = ((high - low) / 15).clamp_min(1e-12)
        code = ((groups - low.unsqueeze(2)) / scale.unsqueeze(2)).round().clamp(0, 15)
        return {"code": code.to(torch.uint8), "scale": scale, "low": low}

    def decode(self, planes: Mapping[str, Tensor]) -> Tensor:
        code = planes["code"].float()
        return (code * planes["scale"].unsqueeze(2) + planes["low"].unsqueeze(2)).flatten(1, 2)


@dataclass(frozen=True)
class Heavy(Evicting):
    """Keeps the tokens that received most attention and the newest ones, per KV head (H2O).

    Heads have different budgets, so their tables are ragged.
    """

    names: ClassVar = {"heavy": {}}
    examples: ClassVar = ("heavy:20", "heavy:9,every=16", "heavy:500")
    signals: ClassVar = frozenset({"mass"})

    tokens: int = arg(positional=True, minimum=4)
    every: int = arg(10, minimum=1)

    @property
    def interval(self) -> int:
        return self.every

    def budget(self, seen: int, layer: int, head: int) -> int:
        return self.tokens + 3 * head + layer

    def select(self, positions: Tensor, mass: Tensor, keep: int, seen: int) -> Tensor:
        count = positions.numel()
        recent = torch.arange(count - keep // 2, count)
        older = torch.argsort(-mass[: count - keep // 2], stable=True)[: keep - keep // 2]
        return torch.cat((older.sort().values, recent))


@dataclass(frozen=True)
class Spread(Evicting):
    """Keeps evenly spaced tokens and asks for no signal at all."""

    names: ClassVar = {"spread": {}}
    examples: ClassVar = ("spread:12",)

    tokens: int = arg(positional=True, minimum=2)

    @property
    def interval(self) -> int:
        return 8

    @property
    def steady(self) -> bool:
        return True

    def budget(self, seen: int, layer: int, head: int) -> int:
        return self.tokens

    def select(self, positions: Tensor, mass: Tensor, keep: int, seen: int) -> Tensor:
        return torch.linspace(0, positions.numel() - 1, keep).long()
