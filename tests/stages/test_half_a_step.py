"""Integer codes: no value is off by more than half a step, whatever the offset and the size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvik.stages.ints import HUGE, TINY, Int, _below

KINDS = [(bits, kind) for bits in (4, 8) for kind in ("sym", "asym")]
SIZES = st.floats(-30, 4.8).map(lambda e: 10.0**e)
UNIT = 2.0**-22  # what float32 loses in scale * code + minimum, relative to the value


def worst(codec: Int, x: Tensor) -> float:
    """The largest error in half steps, float32's own rounding taken off."""
    planes = codec.encode(x.clone())
    error = (codec.decode(planes) - x).abs().double() - UNIT * x.abs().double()
    half = planes["scale"].double().repeat_interleave(x.shape[-1] // planes["scale"].shape[-1], -1)
    return float((error / (half / 2)).max())


@pytest.mark.parametrize(("bits", "kind"), KINDS)
@given(
    st.integers(0, 2**31), SIZES, SIZES, st.sampled_from((-1, 0, 1)), st.sampled_from((8, 16, 32))
)
@settings(max_examples=300)
@example(0, 10.0**-7, 1.0, 0, 8)  # scales below float16's normal range
@example(0, 0.3, 600.4, 1, 32)  # a minimum between two coarse float16 numbers
@example(0, 10.0**-30, 65000.123, -1, 32)
@example(0, HUGE, HUGE, 0, 8)
def test_no_value_is_off_by_more_than_half_a_step(
    bits: int, kind: str, seed: int, spread: float, offset: float, sign: int, group: int
) -> None:
    noise = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(seed))
    x = (noise * spread + sign * offset).clamp(-HUGE, HUGE)
    assert worst(Int(bits, group=group, range=kind), x) <= 1 + 1e-4


@pytest.mark.parametrize(("bits", "kind"), KINDS)
def test_constants_outliers_and_limits(bits: int, kind: str) -> None:
    codec = Int(bits, group=8, range=kind)
    values = [0.0, TINY, -TINY, TINY / 3, 1e-38, 6.1e-5, 1.0, 2049.0, -2049.0, 33333.3, HUGE, -HUGE]
    for value in values:
        for other in (value, 0.0, 1.0, -HUGE, HUGE):
            x = torch.full((1, 1, 8), value)
            x[..., 3] = other
            assert worst(codec, x) <= 1 + 1e-4, (value, other)
            assert codec.decode(codec.encode(x)).isfinite().all()


@pytest.mark.parametrize("bits", [4, 8])
def test_ordinary_values_are_coded_as_by_plain_rounding(bits: int) -> None:
    """What keeps its half step anyway keeps its codes: quality is what it was."""
    x = torch.randn(4, 50, 64, generator=torch.Generator().manual_seed(1)) + 0.3
    groups = x.view(4, 50, 2, 32)
    top = 2**bits - 1
    low = groups.amin(-1).half()
    scale = ((groups.amax(-1) - low.float()) / top).half()
    code = (groups - low.float().unsqueeze(-1)) / scale.float().unsqueeze(-1)
    want = code.round().clamp(0, top) * scale.float().unsqueeze(-1) + low.float().unsqueeze(-1)
    codec = Int(bits, group=32, range="asym")
    assert torch.equal(codec.decode(codec.encode(x)), want.view_as(x))


@pytest.mark.parametrize("offset", [40.2, 600.4, 5000.0])
def test_offset_values_come_out_better_than_by_plain_rounding(offset: float) -> None:
    """Groups that plain rounding clips (biased keys) lose less, also on average."""
    x = torch.randn(4, 200, 32, generator=torch.Generator().manual_seed(2)) * 0.02 * offset**0.5
    x = x + offset
    low = x.amin(-1, keepdim=True).half().float()
    scale = ((x.amax(-1, keepdim=True) - low) / 15).clamp_min(TINY).half().float()
    plain = ((x - low) / scale).round().clamp(0, 15) * scale + low
    codec = Int(4, group=32, range="asym")
    new = codec.decode(codec.encode(x))
    assert (new - x).abs().max() <= (plain - x).abs().max()
    assert (new - x).square().mean() <= 1.02 * (plain - x).square().mean()


def test_below_is_the_next_number() -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    finite = every[every.isfinite()]
    ordered = torch.unique(finite)
    assert torch.equal(_below(ordered[1:]), ordered[:-1])
    assert _below(torch.tensor([-0.0], dtype=torch.float16)).item() == -TINY
