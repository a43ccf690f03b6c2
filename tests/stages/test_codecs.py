"""Codecs against scalar loops that share nothing with them but the format."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from torch import Tensor

from kvik.recipe import Codec
from kvik.stages.floats import Float
from kvik.stages.ints import Int

INTS = [
    Int(bits, group=group, range=kind)
    for bits in (4, 8)
    for group in (0, 4, 16, 64)
    for kind in ("auto", "sym", "asym")
]
FLOATS = [Float("float32"), Float("float16"), Float("bfloat16")]
F16, F32 = np.float16, np.float32
Row = NDArray[np.float32]


def symmetric(codec: Int) -> bool:
    return codec.range == "sym" or (codec.range == "auto" and codec.bits == 8)


def group_size(codec: Int, dim: int) -> int:
    if codec.group:
        return codec.group
    return dim if codec.bits == 8 else min(32, dim)


def scalar_scale(span: F32, top: int) -> F16:
    """To nearest; up where more than half a step would be missing."""
    scale = F16(min(max(span / F32(top), F32(2.0**-24)), F32(65504.0)))
    short = span - F32(top) * F32(scale) > F32(scale) / 2
    return np.nextafter(scale, F16(np.inf)) if short else scale


def scalar_encode(codec: Int, row: Row) -> tuple[list[int], list[F16], list[F16], list[float]]:
    """Codes, scales, minima and exact quotients of one token and head, one number at a time."""
    size = group_size(codec, len(row))
    codes, scales, lows, exact = [], [], [], []
    for start in range(0, len(row), size):
        group = [F32(min(max(x, -65504.0), 65504.0)) for x in row[start : start + size]]
        if symmetric(codec):
            top = 2 ** (codec.bits - 1) - 1
            low, bottom = F16(0), -top
            scale = scalar_scale(F32(max(abs(x) for x in group)), top)
        else:
            top, bottom = 2**codec.bits - 1, 0
            low = F16(min(group))
            scale = scalar_scale(F32(max(group) - F32(low)), top)
            if F32(low) - min(group) > F32(scale) / 2:
                low = np.nextafter(low, F16(-np.inf))
                scale = scalar_scale(F32(max(group) - F32(low)), top)
        for x in group:
            quotient = float(x - F32(low)) / float(scale)
            codes.append(min(max(round(quotient), bottom), top))
            exact.append(quotient)
        scales.append(scale)
        lows.append(low)
    return codes, scales, lows, exact


def unpack(codec: Int, plane: Tensor) -> list[int]:
    """Codes of one token and head from the bytes as they lie in memory."""
    raw = plane.contiguous().view(torch.uint8).tolist()
    if codec.bits == 8:
        return [b - 256 if symmetric(codec) and b > 127 else b for b in raw]
    nibbles = [n for b in raw for n in (b % 16, b // 16)]
    return [n - 8 for n in nibbles] if symmetric(codec) else nibbles


def rows(seed: int, dim: int = 64) -> Tensor:
    """Tokens of many kinds [H=2, T, dim]: normal, offset, spiky, tiny, flat, integers, huge."""
    chance = np.random.default_rng(seed)
    normal = chance.standard_normal((2, 24, dim))
    kinds = [
        normal,
        normal + 100.0,
        normal * np.where(chance.random((2, 24, dim)) < 0.05, 50.0, 1.0),
        normal * 1e-4,
        normal * 1e-9,
        np.full((2, 2, dim), 3.25),
        np.zeros((2, 1, dim)),
        chance.integers(-8, 8, (2, 24, dim)).astype(float),
        normal[:, :4] * 1e5,
        np.abs(normal),
        -np.abs(normal),
    ]
    return torch.from_numpy(np.concatenate(kinds, 1).astype(np.float32))


@pytest.mark.parametrize("codec", INTS, ids=str)
def test_integer_codes_equal_a_scalar_loop(codec: Int) -> None:
    x = rows(1)
    planes = codec.encode(x)
    decoded = codec.decode(planes)
    assert list(planes) == (["code", "scale"] if symmetric(codec) else ["code", "scale", "low"])
    for head in range(x.shape[0]):
        for token in range(x.shape[1]):
            row = x[head, token].numpy()
            codes, scales, lows, exact = scalar_encode(codec, row)
            assert planes["scale"][head, token].tolist() == [float(s) for s in scales]
            if not symmetric(codec):
                assert planes["low"][head, token].tolist() == [float(v) for v in lows]
            got = unpack(codec, planes["code"][head, token])
            for mine, theirs, quotient in zip(got, codes, exact, strict=True):
                tie = abs(abs(quotient % 1.0) - 0.5) < 1e-4
                assert mine == theirs or (tie and abs(mine - theirs) == 1)
            size = group_size(codec, len(row))
            want = [
                float(scales[i // size]) * c + float(lows[i // size]) for i, c in enumerate(got)
            ]
            np.testing.assert_allclose(decoded[head, token].tolist(), want, rtol=2e-7)


@pytest.mark.parametrize("codec", INTS, ids=str)
def test_error_is_at_most_half_a_step_within_the_range(codec: Int) -> None:
    x = rows(2)
    planes = codec.encode(x)
    size = group_size(codec, x.shape[-1])
    error = (codec.decode(planes) - x).abs().view(2, x.shape[1], -1, size)
    scale = planes["scale"].float().unsqueeze(-1)
    groups = x.view(2, x.shape[1], -1, size)
    if symmetric(codec):
        top = 2 ** (codec.bits - 1) - 1
        inside = groups.abs() <= scale * (top + 0.5)
    else:
        low = planes["low"].float().unsqueeze(-1)
        inside = (groups >= low - scale / 2) & (groups <= low + scale * (2**codec.bits - 0.5))
    assert bool((error <= scale / 2 + groups.abs() * 2e-7)[inside].all())
    assert float(inside[:, :24].float().mean()) == 1.0, "ordinary numbers lie inside their range"
    assert float(inside.float().mean()) > 0.9


# techniques, section 1.4: relative mean squared error on N(0, 1) with float16 scales and minima.
EXPECTED = [
    (Int(4, group=32, range="asym"), 6.11e-3),
    (Int(4, group=64, range="asym"), 8.04e-3),
    (Int(4, group=128, range="asym"), 9.94e-3),
    (Int(8, group=32, range="asym"), 2.12e-5),
    (Int(8, group=64, range="asym"), 2.79e-5),
    (Int(8, group=128, range="asym"), 3.44e-5),
    (Int(8, group=32, range="sym"), 2.86e-5),  # q8_0
]


@pytest.mark.parametrize(("codec", "want"), EXPECTED, ids=str)
def test_error_on_normal_numbers_is_as_published(codec: Int, want: float) -> None:
    x = torch.randn(4, 2048, 128, generator=torch.Generator().manual_seed(0))
    error = float((codec.decode(codec.encode(x)) - x).square().mean() / x.square().mean())
    assert error == pytest.approx(want, rel=0.03)


@pytest.mark.parametrize("group", [0, 8, 32, 64])
@pytest.mark.parametrize("kind", ["sym", "asym"])
def test_more_bits_and_smaller_groups_never_hurt(group: int, kind: str) -> None:
    x = torch.randn(2, 256, 64, generator=torch.Generator().manual_seed(4))

    def error(codec: Codec) -> float:
        return float((codec.decode(codec.encode(x)) - x).square().mean())

    assert error(Int(8, group=group, range=kind)) < error(Int(4, group=group, range=kind)) / 50
    for bits in (4, 8):
        sizes = [error(Int(bits, group=g, range=kind)) for g in (8, 16, 32, 64)]
        assert sizes == sorted(sizes)


def test_bytes_of_a_token_and_head() -> None:
    """D = 64, K and V together: the byte table of the techniques."""

    def size(codec: Codec) -> int:
        return 2 * sum(p.unit_bytes for p in codec.planes(64).values())

    assert size(Float("float32")) == 512
    assert size(Float("float16")) == size(Float("bfloat16")) == 256
    assert size(Int(4)) == size(Int(4, group=32)) == 80
    assert size(Int(4, group=64)) == 72
    assert size(Int(4, range="sym")) == 72
    assert size(Int(8)) == 2 * (64 + 2)
    assert size(Int(8, range="asym")) == 2 * (64 + 4)
    assert size(Int(8, group=32)) == 136


def bfloat16(x: float) -> float:
    """Round to nearest, ties to even, on the bits of a float32."""
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    bits += 0x7FFF + (bits >> 16 & 1)
    return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0])


def test_floats_equal_a_scalar_loop() -> None:
    x = rows(3)
    flat = x.flatten().tolist()
    for codec in FLOATS:
        assert codec.encode(x)["x"].dtype == getattr(torch, codec.dtype)
    assert torch.equal(FLOATS[0].decode(FLOATS[0].encode(x)), x)
    half = FLOATS[1].decode(FLOATS[1].encode(x)).flatten().tolist()
    for got, value in zip(half, flat, strict=True):
        assert got == float(F16(min(max(value, -65504.0), 65504.0)))
    brain = FLOATS[2].decode(FLOATS[2].encode(x)).flatten().tolist()
    assert brain == [bfloat16(value) for value in flat]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(INTS + FLOATS),
    hnp.arrays(np.float32, (2, 3, 64), elements=st.floats(width=32, allow_nan=True)),
)
def test_any_number_has_one_clear_fate(codec: Codec, x: Row) -> None:
    """NaN stays NaN (with its group); what is too large saturates; the rest is near."""
    values = torch.from_numpy(x)
    decoded = codec.decode(codec.encode(values.clone()))
    size = group_size(codec, 64) if isinstance(codec, Int) else 1
    broken = values.isnan().view(2, 3, -1, size).any(-1, keepdim=True).expand(2, 3, -1, size)
    assert torch.equal(decoded.isnan(), broken.reshape(2, 3, 64))
    if isinstance(codec, Int) or codec == Float("float16"):
        assert bool((decoded.nan_to_num(0.0).abs() <= 65_600).all())
    if codec == Float("float32"):
        assert torch.equal(decoded.nan_to_num(7.0), values.nan_to_num(7.0))


@pytest.mark.parametrize("codec", INTS + FLOATS, ids=str)
def test_a_token_is_coded_alone(codec: Codec) -> None:
    """Neighbours, even broken ones, change nothing; nor do strides."""
    x = rows(5)
    planes = codec.encode(x)
    wild = x.clone()
    wild[0] = math.nan
    wild[1, ::2] = 1e30
    for name, plane in codec.encode(wild).items():
        assert torch.equal(plane[1, 1::2], planes[name][1, 1::2])
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    for name, plane in codec.encode(strided).items():
        assert torch.equal(plane, planes[name])
    part = codec.decode({name: plane[:, 3:5] for name, plane in planes.items()})
    assert torch.equal(part, codec.decode(planes)[:, 3:5])


@pytest.mark.parametrize("codec", INTS + FLOATS, ids=str)
def test_coding_twice_changes_little(codec: Codec) -> None:
    """Decoded values are close to a fixed point, so recoding a copy would not run away."""
    x = rows(6)[:, :24]
    once = codec.decode(codec.encode(x))
    twice = codec.decode(codec.encode(once))
    step = codec.encode(x)["scale"].float().amax() if isinstance(codec, Int) else 0.0
    assert float((once - twice).abs().max()) <= float(step)
    if isinstance(codec, Float):
        assert torch.equal(once, twice)


@pytest.mark.parametrize("codec", INTS, ids=str)
@pytest.mark.parametrize("dim", [64, 128, 192, 256])
def test_any_dim_that_groups_divide(codec: Int, dim: int) -> None:
    x = torch.randn(1, 2, dim, generator=torch.Generator().manual_seed(dim))
    planes = codec.encode(x)
    for name, plane in codec.planes(dim).items():
        assert planes[name].shape == (1, 2, *plane.shape)
    decoded = codec.decode(planes)
    assert float((decoded - x).abs().max()) < (0.7 if codec.bits == 4 else 0.05)


def test_inputs_are_left_alone() -> None:
    for codec in INTS + FLOATS:
        x = rows(7)
        kept = x.clone()
        planes = codec.encode(x)
        before = {name: plane.clone() for name, plane in planes.items()}
        codec.decode(planes)
        assert torch.equal(x, kept)
        assert all(torch.equal(planes[n], before[n]) for n in before)
