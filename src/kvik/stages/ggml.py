"""llama.cpp's quantized cache types, block for block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvik.recipe.codec import Codec, Plane
from kvik.recipe.stage import arg

if TYPE_CHECKING:
    import torch

    from kvik.spec.model import LayerSpec

BLOCK = 32
HUGE = 65504.0
# The 16 values of iq4_nl: closer together around zero, as K and V are.
LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
TYPES = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


@dataclass(frozen=True)
class Ggml(Codec):
    """K and V in the blocks that llama.cpp's ``-ctk`` and ``-ctv`` name, 32 channels in each.

    Use when: a result has to be set beside llama.cpp's, or exported to it. kvik's ``int8`` and
    ``int4`` are as small or better.
    Cost: 34, 24, 22, 20, 18 and 18 bytes for 32 numbers, in the order of the names above. A block
    has a float16 scale; ``q5_1`` and ``q4_1`` a float16 minimum too.
    Limits: the head dim must be a multiple of 32. llama.cpp also rotates K before it codes 4 and 5
    bits (a Hadamard matrix); these codecs do not.
    Source: the block formats of GGML; ``iq4_nl`` has non-uniform levels.
    """

    names: ClassVar = {name: {"type": name} for name in TYPES}
    examples: ClassVar = ("q5_1",)  # it has every plane; the others are checked by themselves

    type: str = arg("q8_0", choices=TYPES)

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 4 if self.type == "iq4_nl" else int(self.type[1])

    @property
    def minimum(self) -> bool:
        """Whether a block stores its minimum."""
        return self.type.endswith("_1")

    def check(self, layer: LayerSpec) -> list[str]:
        """Blocks must divide the head dim."""
        dims = [layer.k_dim] if layer.kind == "latent" else [layer.k_dim, layer.v_dim]
        return [
            f"{self}: blocks of {BLOCK} do not divide a head dim of {dim}; write int8"
            for dim in dict.fromkeys(dims)
            if dim % BLOCK
        ]

    def planes(self, dim: int) -> Mapping[str, Plane]:
        """Codes, the fifth bits where there are any, float16 scales and minima."""
        signed = self.bits == 8
        planes = {"code": Plane("int8" if signed else "uint8", (dim if signed else dim // 2,))}
        if self.bits == 5:
            planes["high"] = Plane("uint8", (dim // 8,))
        planes["scale"] = Plane("float16", (dim // BLOCK,))
        if self.minimum:
            planes["low"] = Plane("float16", (dim // BLOCK,))
        return planes

    def encode(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """The codes that GGML's reference gives; values beyond ±65,504 saturate."""
        import torch

        blocks = _split(x.clamp(-HUGE, HUGE), BLOCK)
        planes: dict[str, torch.Tensor] = {}
        if self.type == "iq4_nl":
            code, scale = _nearest_levels(blocks)
        elif self.bits == 8:
            scale = blocks.abs().amax(-1) / 127
            scaled = blocks * _inverse(scale)
            code = (scaled + torch.where(scaled < 0, -0.5, 0.5)).trunc()
        elif self.minimum:
            low, top = blocks.amin(-1), 2**self.bits - 1
            scale = (blocks.amax(-1) - low) / top
            code = ((blocks - low.unsqueeze(-1)) * _inverse(scale) + 0.5).trunc().clamp(0, top)
            planes["low"] = low.half()
        else:
            # The number of largest magnitude, with its sign, gets the code 0: minus the middle.
            middle = 2 ** (self.bits - 1)
            scale = _largest(blocks) / -middle
            code = (blocks * _inverse(scale) + (middle + 0.5)).trunc().clamp(0, 2 * middle - 1)
        return self._packed(code) | {"scale": scale.half(), **planes}

    def decode(self, planes: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """scale * level, plus the minimum where there is one."""
        import torch

        code, scale = self._unpacked(planes), planes["scale"].float().unsqueeze(-1)
        if self.type == "iq4_nl":
            code = torch.tensor(LEVELS, dtype=torch.float32, device=code.device)[code]
        elif self.bits < 8 and not self.minimum:
            code = code - 2 ** (self.bits - 1)
        values = code.float() * scale
        if self.minimum:
            values = values + planes["low"].float().unsqueeze(-1)
        return values.flatten(-2)

    def _packed(self, code: torch.Tensor) -> dict[str, torch.Tensor]:
        """Codes [..., blocks, 32] as GGML packs them: j and j + 16 share byte j of a block."""
        import torch

        if self.bits == 8:
            return {"code": code.to(torch.int8).flatten(-2)}
        whole = code.to(torch.uint8)
        low = whole & 15
        packed = {"code": (low[..., :16] | (low[..., 16:] << 4)).flatten(-2)}
        if self.bits == 5:
            bits = _split(whole >> 4, 8) << torch.arange(8, device=code.device)
            packed["high"] = bits.sum(-1).to(torch.uint8).flatten(-2)
        return packed

    def _unpacked(self, planes: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Codes [..., blocks, 32] as int64 (int8 codes as they are)."""
        import torch

        code = _split(planes["code"], BLOCK if self.bits == 8 else 16)
        if self.bits == 8:
            return code
        code = torch.cat((code & 15, code >> 4), -1).long()
        if self.bits == 5:
            high = _split(planes["high"].long(), 4).unsqueeze(-1)
            code = code | ((high >> torch.arange(8, device=code.device) & 1) << 4).flatten(-2)
        return code


def _split(x: torch.Tensor, size: int) -> torch.Tensor:
    """[..., D] as [..., D / size, size]."""
    return x.view(*x.shape[:-1], -1, size)


def _inverse(scale: torch.Tensor) -> torch.Tensor:
    """1 / scale for each block, 0 where the scale is 0."""
    import torch

    return torch.where(scale == 0, 0.0, 1 / scale).unsqueeze(-1)


def _largest(blocks: torch.Tensor) -> torch.Tensor:
    """The number of largest magnitude of each block, with its sign; the first of several."""
    return blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True)).squeeze(-1)


def _nearest_levels(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of the nearest levels, then the scale that fits them best (squares as weights)."""
    import torch

    levels = torch.tensor(LEVELS, dtype=torch.float32, device=blocks.device)
    between = (levels[1:] + levels[:-1]) / 2
    code = torch.bucketize(blocks * _inverse(_largest(blocks) / LEVELS[0]), between)
    q = levels[code]
    # Powers of the block's own size, so that squares of tiny or huge numbers stay in range.
    x = blocks * _inverse(blocks.abs().amax(-1))
    fit, norm = (x * x * q * x).sum(-1), (x * x * q * q).sum(-1)
    scale = torch.where(norm == 0, 0.0, fit / norm) * blocks.abs().amax(-1)
    return code, scale
