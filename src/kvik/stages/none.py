"""No cache at all: every step recomputes everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvik.recipe.codec import Codec, Plane

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class NoCache(Codec):
    """Stores nothing and recomputes K and V of the whole text for every token.

    Use when: you want to see what a cache is for. The tokens are the same, the time is not.
    Cost: no bytes; time per token grows with the text.
    Source: plain transformer decoding (arXiv 1706.03762).
    """

    names: ClassVar = {"none": {}}
    examples: ClassVar = ("none",)
    stores: ClassVar[bool] = False

    def planes(self, dim: int) -> Mapping[str, Plane]:
        """Nothing."""
        return {}

    def encode(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """K and V live as long as one forward pass."""
        return {"x": x.float()}

    def decode(self, planes: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """As they were."""
        return planes["x"]
