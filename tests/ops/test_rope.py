"""Rotary positions against multiplication by complex numbers in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from kvik.ops import angles, angles_at, rotate
from kvik.spec.model import Rope

Layout = Literal["half", "interleaved"]


def complex_rope(x: Tensor, rope: Rope, positions: list[int]) -> NDArray[np.float64]:
    """Channel pairs as complex numbers, turned by exp(i * position * frequency)."""
    result = x.double().numpy().copy()
    half = rope.dim // 2
    for i in range(half):
        frequency = rope.theta ** (-2 * i / rope.dim) / rope.linear
        if rope.factors:
            frequency /= rope.factors[i]
        if rope.layout == "half":
            a, b = rope.offset + i, rope.offset + i + half
        else:
            a, b = rope.offset + 2 * i, rope.offset + 2 * i + 1
        for t, position in enumerate(positions):
            turn = rope.attention_factor * np.exp(1j * position * frequency)
            z = (x[..., t, a].double().numpy() + 1j * x[..., t, b].double().numpy()) * turn
            result[..., t, a], result[..., t, b] = z.real, z.imag
    return result


def turn(x: Tensor, rope: Rope, positions: list[int]) -> Tensor:
    return rotate(x, rope, *angles(rope, torch.tensor(positions), x.dtype))


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


ROPES = {
    "plain": Rope(16, 10_000.0),
    "interleaved": Rope(16, 10_000.0, "interleaved"),
    "partial": Rope(4, 10_000.0),
    "partial interleaved": Rope(4, 10_000.0, "interleaved"),
    "offset": Rope(4, 500_000.0, offset=12),
    "in the middle": Rope(6, 500_000.0, "interleaved", offset=4),
    "linear": Rope(16, 10_000.0, linear=8.0),
    "factors": Rope(16, 500_000.0, factors=(1.0, 1.0, 1.0, 2.5, 4.0, 8.0, 8.0, 8.0)),
    "yarn": Rope(16, 10_000.0, factors=(1.0,) * 4 + (4.0,) * 4, attention_factor=1.139),
    "two channels": Rope(2, 10_000.0),
    "all at once": Rope(8, 1e6, "interleaved", 5, 2.0, (1.0, 2.0, 3.0, 4.0), 0.7),
}


@pytest.mark.parametrize("name", ROPES)
def test_rotation_is_complex_multiplication(name: str) -> None:
    rope = ROPES[name]
    positions = [0, 1, 2, 17, 511, 4096, 131_071, 1_000_000]
    x = normal(2, 3, len(positions), 16)
    got = turn(x, rope, positions)
    np.testing.assert_allclose(got.numpy(), complex_rope(x, rope, positions), rtol=0, atol=1e-8)
    near = turn(x[..., :5, :], rope, positions[:5])
    want = complex_rope(x[..., :5, :], rope, positions[:5])
    np.testing.assert_allclose(near.numpy(), want, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ROPES)
def test_other_channels_pass_through(name: str) -> None:
    rope = ROPES[name]
    x = normal(4, 16)
    got = turn(x, rope, [5, 6, 7, 8])
    end = rope.offset + rope.dim
    assert torch.equal(got[:, : rope.offset], x[:, : rope.offset])
    assert torch.equal(got[:, end:], x[:, end:])
    assert got.shape == x.shape
    assert not torch.equal(got, x)


def test_no_rope_is_no_change() -> None:
    x = normal(4, 16)
    assert rotate(x, None, x, x) is x


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(["half", "interleaved"]),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 100),
)
def test_turning_again_is_turning_by_the_sum(layout: Layout, p: int, q: int, seed: int) -> None:
    """R(q - p) R(p) k = R(q) k, also backwards."""
    rope = Rope(16, 10_000.0, layout)
    k = normal(1, 16, seed=seed)
    again = turn(turn(k, rope, [p]), rope, [q - p])
    torch.testing.assert_close(again, turn(k, rope, [q]), rtol=0, atol=1e-8)
    back = turn(turn(k, rope, [p]), rope, [-p])
    torch.testing.assert_close(back, k, rtol=0, atol=1e-8)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_scores_depend_on_the_distance_alone(layout: Layout) -> None:
    rope = Rope(16, 10_000.0, layout)
    q, k = normal(1, 16, seed=1), normal(1, 16, seed=2)
    scores = [
        float(turn(q, rope, [at + 37]) @ turn(k, rope, [at]).T) for at in (0, 1, 1000, 999_963)
    ]
    assert max(scores) - min(scores) < 1e-8
    assert abs(scores[0] - float(q @ k.T)) > 1e-3


def test_layouts_are_the_same_up_to_order() -> None:
    x = normal(3, 16)
    half = turn(x, Rope(16, 10_000.0), [3, 4, 5])
    order = torch.arange(16).view(8, 2).T.flatten()  # interleaved channels, even ones first
    paired = torch.empty_like(x)
    paired[:, order] = x
    inter = turn(paired, Rope(16, 10_000.0, "interleaved"), [3, 4, 5])
    assert torch.equal(inter[:, order], half)


@pytest.mark.parametrize("position", [1_000_000, 2**24 + 1, 2**31 - 2])
def test_angles_stay_exact_for_long_texts(position: int) -> None:
    """Neither float32 angles nor float32 positions: cos and sin are right to 1e-6."""
    rope = Rope(128, 500_000.0)
    cos, sin = angles(rope, torch.tensor([position]), torch.float32)
    for i in range(64):
        # The angle as a fraction of a turn, with the product split so that nothing is lost.
        frequency = 500_000.0 ** (-2 * i / 128)
        angle = math.fmod(position * frequency, 2 * math.pi)
        slack = 1e-7 + position * frequency * 1e-15
        assert abs(float(cos[0, i]) - math.cos(angle)) < slack
        assert abs(float(sin[0, i]) - math.sin(angle)) < slack
    assert float((cos.double() ** 2 + sin.double() ** 2 - 1).abs().max()) < 1e-6


def test_float32_keys_at_a_million_keep_their_scores() -> None:
    rope = Rope(64, 10_000.0)
    q, k = normal(1, 64, seed=3), normal(1, 64, seed=4)
    want = float(turn(q, rope, [500]) @ turn(k, rope, [0]).T)
    far_q = turn(q.float(), rope, [1_000_500])
    far_k = turn(k.float(), rope, [1_000_000])
    assert abs(float(far_q @ far_k.T) - want) < 1e-4


def test_one_row_of_angles_serves_all_heads() -> None:
    rope = Rope(16, 10_000.0)
    x = normal(2, 3, 4, 16)
    whole = turn(x, rope, [9, 8, 7, 6])
    for h in range(2):
        for g in range(3):
            assert torch.equal(whole[h, g], turn(x[h, g], rope, [9, 8, 7, 6]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_is_kept(dtype: torch.dtype) -> None:
    rope = replace(ROPES["plain"], attention_factor=1.2)
    x = normal(3, 16).to(dtype)
    cos, sin = angles(rope, torch.tensor([1, 2, 3]), dtype)
    assert cos.dtype == sin.dtype == rotate(x, rope, cos, sin).dtype == dtype
    assert cos.shape == (3, 8)


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES.keys())
def test_angles_of_a_token_are_the_same_alone_and_among_others(rope: Rope) -> None:
    at = [0, 1, 63, 64, 65, 127, 128, 4_095, 8_191, 131_071, 1_000_000, 2**31 - 2]
    whole = angles_at(rope, at)
    assert whole.shape == (2, len(at), rope.dim // 2)
    for i, position in enumerate(at):
        one = angles_at(rope, [position])
        assert one.flags.c_contiguous
        assert np.array_equal(one, whole[:, i : i + 1])
    for part, want in zip(whole, angles(rope, torch.tensor(at), torch.float32), strict=True):
        assert np.array_equal(part, want.numpy())
    with pytest.raises(ValueError, match="read-only"):
        angles_at(rope, [5])[:] = 0.0


def test_impossible_ropes_are_refused() -> None:
    for bad in ({"dim": 0}, {"dim": 3}, {"dim": -2}, {"dim": 4, "factors": (1.0,)}):
        with pytest.raises(ValueError, match=r"rot|factors"):
            Rope(theta=10_000.0, **bad)  # type: ignore[arg-type]
