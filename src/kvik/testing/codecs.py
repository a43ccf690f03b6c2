"""check_codec: what every codec has to keep, whatever it does to the numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from kvik.recipe import Codec
from kvik.testing.error import ConformanceError

HEADS, DIM = 2, 64


def check_codec(codec: Codec, dim: int = DIM) -> None:
    """Raises ConformanceError when the codec breaks a law; silent when it keeps them."""
    generator = torch.Generator().manual_seed(3)
    tokens = 4 * codec.close_tokens
    x = torch.randn(HEADS, tokens, dim, generator=generator)
    planes = codec.encode(x.clone())
    _check_planes(codec, planes, tokens, dim)
    decoded = codec.decode(planes)
    if decoded.shape != x.shape or decoded.dtype != torch.float32:
        raise ConformanceError(f"{codec}: decode gives {decoded.dtype} {tuple(decoded.shape)}")
    error = float((decoded - x).square().mean() / x.square().mean())
    if not error < 0.25:
        raise ConformanceError(
            f"{codec}: decoded tokens are not the tokens (relative error {error:.3f})"
        )
    for a, b in zip(codec.encode(x.clone()).values(), planes.values(), strict=True):
        if not torch.equal(a, b):
            raise ConformanceError(f"{codec}: the same tokens got other codes the second time")
    _check_groups(codec, x, planes)
    _check_hard_values(codec, dim)


def _check_planes(codec: Codec, planes: dict[str, Tensor], tokens: int, dim: int) -> None:
    declared = codec.planes(dim)
    if list(planes) != list(declared):
        raise ConformanceError(
            f"{codec}: encode gives {list(planes)}, planes says {list(declared)}"
        )
    for name, plane in declared.items():
        shape = (HEADS, tokens // plane.tokens, *plane.shape)
        dtype = getattr(torch, plane.dtype)
        if planes[name].shape != shape or planes[name].dtype != dtype:
            got = f"{planes[name].dtype} {tuple(planes[name].shape)}"
            raise ConformanceError(f"{codec}: plane {name!r} is {got}, declared {dtype} {shape}")
        held = planes[name].numel() * planes[name].element_size()
        if held != HEADS * tokens // plane.tokens * plane.unit_bytes:
            raise ConformanceError(
                f"{codec}: plane {name!r} holds {held} bytes, not what it declares"
            )


def _check_groups(codec: Codec, x: Tensor, planes: dict[str, Tensor]) -> None:
    """A group's codes depend on its own tokens and head alone."""
    group = codec.close_tokens
    for start in range(0, x.shape[1], group):
        alone = codec.encode(x[:, start : start + group].contiguous())
        for name, plane in codec.planes(x.shape[-1]).items():
            units = slice(start // plane.tokens, (start + group) // plane.tokens)
            if not torch.equal(alone[name], planes[name][:, units]):
                raise ConformanceError(
                    f"{codec}: codes of a group depend on other tokens ({name!r})"
                )
    for head in range(HEADS):
        alone = codec.encode(x[head : head + 1].contiguous())
        for name, codes in alone.items():
            if not torch.equal(codes, planes[name][head : head + 1]):
                raise ConformanceError(f"{codec}: codes of a head depend on other heads ({name!r})")


def _check_hard_values(codec: Codec, dim: int) -> None:
    shape = (1, codec.close_tokens, dim)
    hard = {
        "zeros": torch.zeros(shape),
        "a constant": torch.full(shape, 3.0),
        "tiny numbers": torch.full(shape, 1e-30),
        "huge numbers": torch.linspace(-1e6, 1e6, dim).expand(shape).contiguous(),
        "one outlier": torch.zeros(shape).index_fill_(-1, torch.tensor([1]), 100.0),
    }
    for what, x in hard.items():
        decoded = codec.decode(codec.encode(x))
        if not bool(decoded.isfinite().all()):
            raise ConformanceError(f"{codec}: {what} decode to something that is not finite")
    flat = codec.decode(codec.encode(hard["a constant"]))
    if not torch.allclose(flat, hard["a constant"], rtol=0.02):
        raise ConformanceError(
            f"{codec}: a constant decodes to {float(flat.mean()):.4f} instead of 3"
        )
