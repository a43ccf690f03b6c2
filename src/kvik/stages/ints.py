"""Integer codes with a scale for each group of channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvik.recipe.codec import Codec, Plane
from kvik.recipe.stage import arg

if TYPE_CHECKING:
    import torch

    from kvik.spec.model import LayerSpec

TINY = 2.0**-24  # smallest positive float16: a scale is never zero
HUGE = 65504.0


@dataclass(frozen=True)
class Int(Codec):
    """K and V as 8- or 4-bit integers, one scale for each group of channels of a token and head.

    Use when: memory matters. ``int8`` is nearly lossless everywhere; ``int4`` costs some quality,
    less on V than on K, so ``int8/int4`` is a good middle.
    Cost: bits/8 bytes per number, plus 2 bytes (symmetric) or 4 (asymmetric: scale and minimum)
    per group. int8 is symmetric with one group per head, int4 asymmetric in groups of 32.
    Limits: models with large key biases (Qwen2) need more than 4 bits on K.
    Source: LLM.int8() style absmax scaling; group-wise asymmetric codes as in FlexGen
    (arXiv 2303.06865).
    """

    names: ClassVar = {"int8": {"bits": 8}, "int4": {"bits": 4}}
    examples: ClassVar = (
        "int8",
        "int8:group=16",
        "int8:range=asym",
        "int4",
        "int4:group=16",
        "int4:range=sym",
    )

    bits: int = arg(8, choices=(4, 8))
    group: int = arg(0, minimum=0)
    range: str = arg("auto", choices=("auto", "sym", "asym"))

    @property
    def symmetric(self) -> bool:
        """Whether zero is its own code (no minimum is stored)."""
        return self.range == "sym" or (self.range == "auto" and self.bits == 8)

    def group_of(self, dim: int) -> int:
        """Channels that share a scale."""
        return self.group or (dim if self.bits == 8 else min(32, dim))

    def check(self, layer: LayerSpec) -> list[str]:
        """Groups must divide the head dim; 4-bit codes come in pairs."""
        reasons = []
        dims = [layer.k_dim] if layer.kind == "latent" else [layer.k_dim, layer.v_dim]
        for dim in dict.fromkeys(dims):
            if dim % self.group_of(dim):
                reasons.append(
                    f"{self}: groups of {self.group_of(dim)} do not divide a head dim of {dim}; "
                    f"write group=N with N a divisor of {dim}"
                )
            if self.bits == 4 and dim % 2:
                reasons.append(f"{self}: 4-bit codes need an even head dim, not {dim}; write int8")
        return reasons

    def planes(self, dim: int) -> Mapping[str, Plane]:
        """Codes (two to a byte at 4 bits), float16 scales and, when asymmetric, minima."""
        groups = dim // self.group_of(dim)
        code = Plane("int8" if self._signed else "uint8", (dim * self.bits // 8,))
        planes = {"code": code, "scale": Plane("float16", (groups,))}
        if not self.symmetric:
            planes["low"] = Plane("float16", (groups,))
        return planes

    @property
    def _signed(self) -> bool:
        return self.bits == 8 and self.symmetric

    def encode(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Rounds scale (and minimum) to float16 first, so that decoding uses the same ones.

        To nearest, unless a value would then lie more than half a step outside the codes: then the
        scale up, or the minimum down. So no finite value within ±65,504 is off by more than half
        a step. Values beyond saturate, infinities too; a NaN makes its whole group NaN.
        """
        import torch

        dim = x.shape[-1]
        groups = _grouped(x.clamp(-HUGE, HUGE), self.group_of(dim))
        planes: dict[str, torch.Tensor] = {}
        if self.symmetric:
            top = 2 ** (self.bits - 1) - 1
            scale = _scale(groups.abs().amax(-1), top)
            code = (groups / scale.float().unsqueeze(-1)).round().clamp(-top, top)
            code = code if self._signed else code + top + 1
        else:
            top = 2**self.bits - 1
            least, most = groups.amin(-1), groups.amax(-1)
            low = least.half()
            scale = _scale(most - low.float(), top)
            low = torch.where(low.float() - least > scale.float() / 2, _below(low), low)
            # Rounding the minimum moved it; the scale must still reach the maximum.
            scale = _scale(most - low.float(), top)
            shifted = groups - low.float().unsqueeze(-1)
            code = (shifted / scale.float().unsqueeze(-1)).round().clamp(0, top)
            planes["low"] = low
        code = code.flatten(-2).to(torch.int8 if self._signed else torch.uint8)
        if self.bits == 4:
            # Channels 2i and 2i + 1 share byte i, the even one in the low nibble.
            code = code[..., 0::2] | (code[..., 1::2] << 4)
        return {"code": code, "scale": scale, **planes}

    def decode(self, planes: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """scale * code, plus the minimum or minus the offset of unsigned symmetric codes."""
        import torch

        code, scale = planes["code"], planes["scale"].float().unsqueeze(-1)
        if self.bits == 4:
            code = torch.stack((code & 15, code >> 4), -1).flatten(-2)
        groups = _grouped(code.float(), code.shape[-1] // scale.shape[-2])
        if self.symmetric:
            groups = groups if self._signed else groups - 2.0 ** (self.bits - 1)
            return (groups * scale).flatten(-2)
        return (groups * scale + planes["low"].float().unsqueeze(-1)).flatten(-2)


def _grouped(x: torch.Tensor, group: int) -> torch.Tensor:
    return x.view(*x.shape[:-1], -1, group)


def _scale(span: torch.Tensor, top: int) -> torch.Tensor:
    """``top`` steps reach ``span`` with at most half a step missing; float16, never zero."""
    import torch

    scale = (span / top).clamp(TINY, HUGE).half()
    short = span - top * scale.float() > scale.float() / 2
    return torch.where(short, (scale.view(torch.int16) + 1).view(torch.float16), scale)


def _below(x: torch.Tensor) -> torch.Tensor:
    """The next float16 below each finite ``x``."""
    import torch

    bits = x.view(torch.int16)
    under = torch.where(x > 0, bits - 1, torch.where(x < 0, bits + 1, -32767))
    return under.to(torch.int16).view(torch.float16)
