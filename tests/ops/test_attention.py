"""Attention against a dense float64 computation in numpy that knows no tile."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kvik.ops import Keys, Scoring, attend, mass, merge, reference

FOREVER = 2**31 - 1
F64 = NDArray[np.float64]


def dense(
    q: Tensor, positions: Tensor, keys: Keys, scoring: Scoring, q_sinks: Tensor | None = None
) -> tuple[F64, F64, F64]:
    """Output [H, G, n, Dv], log-sum-exp [H, G, n] and mass [H, E], query by query."""
    qs, k, v = (x.double().numpy() for x in (q, keys.k, keys.v))
    second = qs if q_sinks is None else q_sinks.double().numpy()
    at, first, until = positions.numpy(), keys.first.numpy(), keys.until.numpy()
    heads, group, count, _ = qs.shape
    out = np.zeros((heads, group, count, v.shape[-1]))
    lse = np.full((heads, group, count), -np.inf)
    received = np.zeros(k.shape[:2])
    for h, g, i in itertools.product(range(heads), range(group), range(count)):
        scores = k[h] @ qs[h, g, i] * scoring.scale
        scores[: keys.sinks] = k[h, : keys.sinks] @ second[h, g, i] * scoring.scale
        if scoring.softcap is not None:
            scores = scoring.softcap * np.tanh(scores / scoring.softcap)
        scores[~((first <= at[i]) & (at[i] < until))] = -np.inf
        if not np.isfinite(scores).any():
            continue
        top = scores.max()
        weights = np.exp(scores - top)
        lse[h, g, i] = top + math.log(weights.sum())
        weights /= weights.sum()
        out[h, g, i] = weights @ v[h]
        received[h] += weights
    return out, lse, received


def case(
    seed: int = 0,
    *,
    heads: int = 2,
    group: int = 3,
    queries: int = 9,
    past: int = 30,
    dim: int = 8,
    v_dim: int = 5,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Keys]:
    """Queries at the end of a causal text of ``past`` + ``queries`` tokens."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    entries = past + queries
    at = torch.arange(entries)
    k, v = normal(heads, entries, dim), normal(heads, entries, v_dim)
    keys = Keys(k, v, at, at, torch.full_like(at, FOREVER))
    return normal(heads, group, queries, dim), at[past:], keys


def agree(
    q: Tensor,
    positions: Tensor,
    keys: Keys,
    scoring: Scoring,
    q_sinks: Tensor | None = None,
    tolerance: float = 1e-12,
) -> None:
    """attend and mass equal the dense computation."""
    out, lse = attend(q, positions, keys, scoring, q_sinks)
    got = mass(q, positions, keys, scoring, lse, q_sinks)
    want_out, want_lse, want_mass = dense(q, positions, keys, scoring, q_sinks)
    assert out.dtype == lse.dtype == q.dtype
    assert got.dtype == torch.float64
    near = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_allclose(out.numpy(), want_out, **near)  # type: ignore[arg-type]
    np.testing.assert_allclose(lse.numpy(), want_lse, **near)  # type: ignore[arg-type]
    np.testing.assert_allclose(got.numpy(), want_mass, **near)  # type: ignore[arg-type]


@pytest.fixture(params=[(1, 1), (4, 7), (3, 16), (256, 1024)], ids=str)
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles smaller and larger than the inputs, that divide them and do not."""
    monkeypatch.setattr(reference, "QUERY_TILE", request.param[0])
    monkeypatch.setattr(reference, "KEY_TILE", request.param[1])


@pytest.mark.usefixtures("tiles")
class TestTiles:
    """Everything that must hold whatever the tiles are."""

    @pytest.mark.parametrize(("heads", "group"), [(1, 1), (1, 4), (3, 1), (2, 3)])
    def test_grouped_heads(self, heads: int, group: int) -> None:
        agree(*case(heads=heads, group=group), Scoring(0.3))

    def test_one_query_and_one_key(self) -> None:
        agree(*case(queries=1, past=0), Scoring(0.3))
        agree(*case(queries=1, past=40), Scoring(0.3))

    def test_softcap(self) -> None:
        agree(*case(), Scoring(5.0, 3.0))

    def test_float32(self) -> None:
        agree(*case(dtype=torch.float32), Scoring(0.3), tolerance=2e-6)

    def test_windows_and_late_visibility(self) -> None:
        q, positions, keys = case()
        window = replace(keys, until=keys.position + 7)
        agree(q, positions, window, Scoring(0.3))
        late = replace(keys, first=keys.position + 5)
        agree(q, positions, late, Scoring(0.3))

    def test_a_token_in_two_forms_at_disjoint_times(self) -> None:
        """In full precision until its code closes, and through its code from then on."""
        q, positions, keys = case()
        at = torch.cat((keys.position, keys.position))
        closes = keys.position // 8 * 8 + 12
        both = Keys(
            torch.cat((keys.k, keys.k + 0.1), 1),
            torch.cat((keys.v, keys.v - 0.1), 1),
            at,
            torch.cat((keys.first, closes)),
            torch.cat((closes, keys.until)),
        )
        agree(q, positions, both, Scoring(0.3))

    def test_sinks_are_scored_with_the_second_query(self) -> None:
        q, positions, keys = case()
        second = q.flip(-1).contiguous()
        for sinks in (1, 16, 39):
            marked = replace(keys, sinks=sinks)
            agree(q, positions, marked, Scoring(0.3), second)
        plain, _ = attend(q, positions, keys, Scoring(0.3))
        unmoved, _ = attend(q, positions, replace(keys, sinks=4), Scoring(0.3))
        torch.testing.assert_close(plain, unmoved, rtol=1e-12, atol=1e-12)

    def test_empty_rows_are_zero(self) -> None:
        q, positions, keys = case()
        some = replace(keys, first=torch.where(keys.position < 34, FOREVER - 1, keys.first))
        agree(q, positions, some, Scoring(0.3))
        out, lse = attend(q, positions, some, Scoring(0.3))
        assert torch.equal(out[:, :, :4], torch.zeros_like(out[:, :, :4]))
        assert bool((lse[:, :, :4] == -math.inf).all())
        assert bool(lse[:, :, 4:].isfinite().all())

    def test_no_entries_at_all(self) -> None:
        q, positions, keys = case()
        none = torch.zeros(0, dtype=torch.int64)
        agree(q, positions, Keys(keys.k[:, :0], keys.v[:, :0], none, none, none), Scoring(0.3))

    def test_any_order_of_entries(self) -> None:
        q, positions, keys = case()
        order = torch.randperm(39, generator=torch.Generator().manual_seed(1))
        mixed = Keys(
            keys.k[:, order], keys.v[:, order], *(x[order] for x in (keys.position,) * 2),
            keys.until,
        )  # fmt: skip
        agree(q, positions, mixed, Scoring(0.3))
        a, b = attend(q, positions, keys, Scoring(0.3)), attend(q, positions, mixed, Scoring(0.3))
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)

    def test_one_dominant_score(self) -> None:
        q, positions, keys = case()
        for at in (0, 20, 38):
            k = keys.k.clone()
            k[:, at] = 0.0
            loud = replace(keys, k=k)
            loud.k[:, at, 0] = 1000.0
            ahead = q.clone()
            ahead[..., 0] = 1.0
            agree(ahead, positions, loud, Scoring(1.0))
            out, _ = attend(ahead, positions, loud, Scoring(1.0))
            if at <= 30:
                close = keys.v[:, at].view(2, 1, 1, -1).expand_as(out)
                torch.testing.assert_close(out, close)

    def test_scores_of_any_size(self) -> None:
        q, positions, keys = case()
        for scale in (0.0, -1e4, 1e150):
            agree(q, positions, keys, Scoring(scale), tolerance=1e-9)

    def test_scores_far_apart_in_float32(self) -> None:
        """Growing and falling scores, so that every tile rescales or is negligible."""
        q, positions, keys = case(dtype=torch.float32, dim=1)
        for sign in (1.0, -1.0):
            k = (keys.position.float() * sign * 25.0).view(1, -1, 1).expand(2, -1, 1)
            ones = torch.ones_like(q)
            agree(ones, positions, replace(keys, k=k.contiguous()), Scoring(1.0), tolerance=1e-5)

    def test_equal_scores_give_the_mean(self) -> None:
        q, positions, keys = case()
        same = replace(keys, k=torch.ones_like(keys.k))
        out, lse = attend(q, positions, same, Scoring(0.3))
        for i, position in enumerate(positions.tolist()):
            mean = keys.v[:, : position + 1].mean(1)
            torch.testing.assert_close(out[:, :, i], mean.unsqueeze(1).expand(-1, 3, -1))
            shift = lse[:, :, i] - q[:, :, i].sum(-1) * 0.3
            torch.testing.assert_close(shift, torch.full_like(shift, math.log(position + 1)))

    def test_mass_is_what_queries_gave(self) -> None:
        q, positions, keys = case()
        _, lse = attend(q, positions, keys, Scoring(0.3))
        received = mass(q, positions, keys, Scoring(0.3), lse)
        torch.testing.assert_close(
            received.sum(1), torch.full((2,), 3.0 * 9, dtype=torch.float64), rtol=1e-12, atol=0
        )


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 7),
    st.integers(0, 20),
    st.integers(1, 9),
    st.integers(1, 9),
    st.booleans(),
)
def test_any_visibility(
    seed: int,
    heads: int,
    group: int,
    queries: int,
    past: int,
    query_tile: int,
    key_tile: int,
    with_sinks: bool,
) -> None:
    """Random [first, until) for every entry, empty ranges included."""
    q, positions, keys = case(seed, heads=heads, group=group, queries=queries, past=past)
    chance = torch.Generator().manual_seed(seed)
    total = past + queries
    first, until = torch.randint(0, total + 3, (2, total), generator=chance)
    sinks = min(total, 4) if with_sinks else 0
    keys = replace(keys, first=first, until=until, sinks=sinks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "QUERY_TILE", query_tile)
        patch.setattr(reference, "KEY_TILE", key_tile)
        agree(q, positions, keys, Scoring(0.4, 4.0 if seed % 2 else None), q.flip(2))


def test_tiles_change_only_rounding() -> None:
    q, positions, keys = case(queries=40, past=60, dtype=torch.float32)
    results = []
    for size in (1, 13, 1024):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reference, "QUERY_TILE", size)
            patch.setattr(reference, "KEY_TILE", size)
            results.append(attend(q, positions, keys, Scoring(0.3))[0])
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, rtol=1e-5, atol=1e-6)


def test_inputs_are_left_alone() -> None:
    q, positions, keys = case()
    before = [x.clone() for x in (q, positions, keys.k, keys.v, keys.first, keys.until)]
    _, lse = attend(q, positions, replace(keys, sinks=3), Scoring(0.3, 5.0), q)
    kept = lse.clone()
    mass(q, positions, keys, Scoring(0.3), lse, q)
    after = [q, positions, keys.k, keys.v, keys.first, keys.until]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert torch.equal(lse, kept)


class LargestTensor(TorchDispatchMode):
    """Remembers the most elements any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, Tensor):
                self.most = max(self.most, x.numel())
        return result


def test_memory_is_linear_in_the_text() -> None:
    """3,000 queries over 3,000 keys never make a tensor of 3,000 x 3,000."""
    q, positions, keys = case(
        heads=1, group=1, queries=3000, past=0, dim=8, v_dim=8, dtype=torch.float32
    )
    with LargestTensor() as watch:
        _, lse = attend(q, positions, keys, Scoring(0.3))
        mass(q, positions, keys, Scoring(0.3), lse)
    assert watch.most <= reference.QUERY_TILE * reference.KEY_TILE
    assert watch.most < 3000 * 3000 / 30
    with LargestTensor() as watch:
        torch.matmul(q, keys.k.transpose(-1, -2))
    assert watch.most == 3000 * 3000, "the watch sees what it should"


# merge


def split(parts: int, seed: int = 0) -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    """Attention over disjoint parts of the keys, and over all of them."""
    q, positions, keys = case(seed, past=40)
    owner = torch.randint(0, parts, (49,), generator=torch.Generator().manual_seed(seed))
    pieces = []
    for part in range(parts):
        at = owner == part
        piece = Keys(keys.k[:, at], keys.v[:, at], keys.position[at], keys.first[at],
                     keys.until[at])  # fmt: skip
        pieces.append(attend(q, positions, piece, Scoring(0.3)))
    return pieces, attend(q, positions, keys, Scoring(0.3))


def close(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 60])
def test_merged_parts_are_the_whole(parts: int) -> None:
    pieces, whole = split(parts)
    close(merge(pieces), whole)


def test_merge_is_associative_and_commutative() -> None:
    (a, b, c), whole = split(3)
    for x, y, z in itertools.permutations((a, b, c)):
        close(merge([x, y, z]), whole)
        close(merge([merge([x, y]), z]), whole)
        close(merge([x, merge([y, z])]), whole)


def test_empty_parts_change_nothing() -> None:
    pieces, whole = split(2)
    out, lse = whole
    empty = torch.zeros_like(out), torch.full_like(lse, -math.inf)
    close(merge([empty, *pieces, empty]), whole)
    close(merge([whole, empty]), whole, 0)
    nothing = merge([empty, empty])
    close(nothing, empty, 0)
    close(merge([empty]), empty, 0)


@pytest.mark.parametrize("gap", [0.0, 200.0, -200.0, 1e4, -1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 300.0, -300.0])
def test_gaps_between_parts(gap: float, dtype: torch.dtype, offset: float) -> None:
    """Log-sum-exps 200 or 10,000 apart neither overflow nor become NaN."""
    a = (torch.full((2, 3), 1.0, dtype=dtype), torch.full((2,), offset, dtype=dtype))
    b = (torch.full((2, 3), 5.0, dtype=dtype), torch.full((2,), offset + gap, dtype=dtype))
    out, lse = merge([a, b])
    share = 1.0 / (1.0 + math.exp(min(-gap, 700.0)))
    want = torch.full((2, 3), 1.0 + 4.0 * share, dtype=dtype)
    torch.testing.assert_close(out, want)
    joint = offset + max(gap, 0.0) + math.log1p(math.exp(-abs(gap)))
    torch.testing.assert_close(lse, torch.full((2,), joint, dtype=dtype))
    assert out.dtype == lse.dtype == dtype
