"""K and V as floating-point numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvik.recipe.codec import Codec, Plane
from kvik.recipe.stage import arg

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Float(Codec):
    """K and V as floats: ``fp32``, ``fp16`` or ``bf16`` (``f32`` and ``f16`` mean the same).

    Use when: quality must not change at all (fp32), or memory is no concern (fp16, the default).
    Cost: 4 or 2 bytes per number. fp16 saturates at 65,504; bf16 has 8 bits of precision.
    Source: IEEE 754; bfloat16.
    """

    names: ClassVar = {
        "fp32": {"dtype": "float32"},
        "fp16": {"dtype": "float16"},
        "bf16": {"dtype": "bfloat16"},
        "f32": {"dtype": "float32"},
        "f16": {"dtype": "float16"},
    }
    examples: ClassVar = ("fp32", "fp16", "bf16")

    dtype: str = arg("float16", choices=("float32", "float16", "bfloat16"))

    def planes(self, dim: int) -> Mapping[str, Plane]:
        """One plane: the numbers themselves."""
        return {"x": Plane(self.dtype, (dim,))}

    def encode(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Rounds to nearest; NaN stays NaN.

        Values beyond fp16's range saturate instead of overflowing, infinities too.
        """
        import torch

        dtype = getattr(torch, self.dtype)
        if dtype == torch.float16:
            x = x.clamp(-65504.0, 65504.0)
        return {"x": x.to(dtype)}

    def decode(self, planes: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Widens to float32, exactly."""
        return planes["x"].float()
