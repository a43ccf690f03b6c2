"""Packed weights: the file's values, products by definition, the same bits however they are cut."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.native.linear_cases import (
    CODED,
    FLOATS,
    ROUNDED,
    block,
    dense,
    packed,
    random_bytes,
    rounded,
    values,
)
from torch import Tensor
from torch.nn import functional

from kvik import native
from kvik.errors import KvikError
from kvik.ops.native_linear import PACKABLE, LayerEnd, Packed, Projection, pack
from kvik.spec.ggml import TENSOR_TYPES

pytestmark = pytest.mark.skipif(
    native.library() is None, reason="kvik is installed without the native library"
)


def ways() -> Iterator[str]:
    """Every instruction set and several thread counts, one after the other."""
    lib = native.library()
    assert lib is not None
    best, threads = native.variant(lib), native.threads(lib)
    try:
        for variant in native.variants(lib):
            native.select(lib, variant)
            for count in (1, 2, 4):
                native.set_threads(lib, count)
                yield f"{variant} with {count} threads"
    finally:
        native.select(lib, best)
        native.set_threads(lib, threads)


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def close(got: Tensor, wanted: Tensor, size: Tensor, error: float) -> None:
    """Whether they agree to ``error`` of ``size``, the sum of the terms' magnitudes."""
    worst = ((got.double() - wanted).abs() / (size + 1e-30)).max()
    assert worst < error, f"off by {worst:.2e} of the sum of magnitudes"


@pytest.mark.parametrize("kind", PACKABLE)
def test_packed_rows_are_the_files_values(kind: str) -> None:
    for rows, cols in ((13, 256), (8, 512), (1, 256)):
        raw = random_bytes(kind, rows, cols, seed=rows)
        wanted, weight = values(raw, kind), pack(raw, kind, (rows, cols))
        for _ in ways():
            got = weight.rows(range(rows))
            if kind in ROUNDED:
                torch.testing.assert_close(got, wanted, rtol=0, atol=2**-10 * wanted.abs().max())
            else:
                assert torch.equal(got, wanted)
        chosen = [rows - 1, 0, rows - 1]
        assert torch.equal(weight.rows(chosen, 3.0), got[chosen] * 3.0)


@pytest.mark.parametrize("kind", ROUNDED)
def test_tiny_scales_keep_their_precision(kind: str) -> None:
    """Halves alone would lose scales below 2^-14."""
    raw = random_bytes(kind, 8, 256).reshape(8, -1)
    at = 208 if kind == "Q6_K" else 0
    raw[:, at : at + 2] = np.float16([2e-7]).view(np.uint8)
    if kind in ("Q4_K", "Q5_K"):
        raw[:, 2:4] = np.float16([-1e-7]).view(np.uint8)
    wanted, got = values(raw, kind), dense(pack(raw, kind, (8, 256)))
    torch.testing.assert_close(got.float(), wanted, rtol=0, atol=2**-10 * wanted.abs().max())


@pytest.mark.parametrize("kind", PACKABLE)
def test_memory_is_at_most_half_as_much_again(kind: str) -> None:
    rows, cols = 64, 512
    of_file = rows * cols // block(kind) * TENSOR_TYPES[PACKABLE[kind]].nbytes
    assert packed(kind, rows, cols).data.nbytes <= 1.5 * of_file


@settings(max_examples=60)
@given(
    kind=st.sampled_from(list(PACKABLE)),
    rows=st.integers(1, 70),
    blocks=st.integers(1, 4),
    n=st.integers(1, 40),
    bias=st.booleans(),
)
def test_products_are_what_they_should_be(
    kind: str, rows: int, blocks: int, n: int, bias: bool
) -> None:
    cols = blocks * (7 if kind in FLOATS else block(kind))
    weight, x = packed(kind, rows, cols, seed=rows), noise(n, cols, seed=n)
    added = noise(rows, seed=3) if bias else torch.zeros(rows)
    got = Projection([weight], [added if bias else None])(x)
    w = dense(weight)
    seen = x.double() if kind in FLOATS else rounded(x)
    size = seen.abs() @ w.abs().T + added.abs()
    close(got, seen @ w.T + added, size, 2e-6)
    # Rounding the input costs little against doing without.
    close(got, x.double() @ w.T + added, size, 1e-4)


@pytest.mark.parametrize("kind", PACKABLE)
def test_rows_threads_and_instruction_sets_do_not_matter(kind: str) -> None:
    cols = 1043 if kind in FLOATS else 1280  # more than one stretch of inputs
    project = Projection([packed(kind, 75, cols)])
    x = noise(110, cols)
    whole = project(x)
    for way in ways():
        assert torch.equal(project(x), whole), way
        for cut in (1, 2, 7):
            parts = [project(part) for part in x[:22].split(cut)]
            assert torch.equal(torch.cat(parts), whole[:22]), f"{way}, {cut} rows at a time"


def test_long_inputs_go_through_in_chunks() -> None:
    project, x = Projection([packed("Q4_1", 40, 64)]), noise(1100, 64)
    whole = project(x)
    for rows in ([0], [479], [480], [1099]):
        assert torch.equal(project(x[rows]), whole[rows])


def norm64(x: Tensor, norm: tuple[Tensor, float] | None) -> Tensor:
    if norm is None:
        return x
    return functional.rms_norm(x, norm[0].shape, norm[0].double(), norm[1])


@pytest.mark.parametrize("kinds", [("Q4_1", "Q6_K", "Q8_0"), ("F16", "Q4_0", "F32"), ("BF16",) * 3])
def test_projections_beside_each_other_with_norms(kinds: tuple[str, str, str]) -> None:
    cols, dim, heads = 256, 12, (5, 2, 2)
    weights = [packed(k, h * dim, cols, seed=h) for k, h in zip(kinds, heads, strict=True)]
    norm = (1 + 0.1 * noise(cols), 1e-5)
    head_norms = [(1 + 0.1 * noise(dim, seed=s), 1e-6) for s in (7, 8)]
    biases = [noise(60), None, noise(24)]
    project = Projection(weights, biases, norm, [*head_norms, None], dim)
    x = 3 * noise(9, cols)
    got, hidden = project(x), norm64(x.double(), norm)
    for part, weight, bias, head_norm in zip(
        got.split([60, 24, 24], 1), weights, biases, [*head_norms, None], strict=True
    ):
        wanted = hidden @ dense(weight).T + (0 if bias is None else bias)
        wanted = norm64(wanted.view(9, -1, dim), head_norm).reshape(9, -1)
        torch.testing.assert_close(part.double(), wanted, rtol=1e-3, atol=1e-3)
    for _ in ways():
        assert torch.equal(torch.cat([project(x[:1]), project(x[1:])]), got)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("post", [False, True], ids=["", "post norms"])
@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "F32", "BF16"])
def test_end_of_a_layer(kind: str, post: bool, activation: str) -> None:
    # Shapes that fill neither vectors nor tiles, where the type allows.
    hidden, inner, mixed = (44, 76, 36) if kind in FLOATS else (256, 512, 256)
    shapes = {"o": (hidden, mixed), "gate": (inner, hidden), "up": (inner, hidden)}
    shapes["down"] = (hidden, inner)
    w = {name: packed(kind, *shape, seed=len(name)) for name, shape in shapes.items()}
    norms = [(1 + 0.1 * noise(hidden, seed=s), 1e-6) for s in range(3)]
    bias = noise(hidden)
    end = LayerEnd(
        *w.values(),
        activation=activation,
        ffn_norm=norms[0],
        post_mixer_norm=norms[1] if post else None,
        post_ffn_norm=norms[2] if post else None,
        o_bias=bias,
    )
    m, x = noise(7, mixed), noise(7, hidden)
    before, act = x.clone(), functional.silu
    if activation == "gelu_tanh":

        def act(x: Tensor) -> Tensor:
            return functional.gelu(x, approximate="tanh")

    d = {name: dense(weight) for name, weight in w.items()}
    y = x.double() + norm64(m.double() @ d["o"].T + bias, norms[1] if post else None)
    h = norm64(y, norms[0])
    fed = (act(h @ d["gate"].T) * (h @ d["up"].T)) @ d["down"].T
    wanted = y + norm64(fed, norms[2] if post else None)
    got = end(m, x)
    assert torch.equal(x, before)
    error = (got.double() - wanted).abs().max() / wanted.abs().max()
    assert error < 1e-4
    for way in ways():
        assert torch.equal(torch.cat([end(m[:1], x[:1]), end(m[1:], x[1:])]), got), way


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F16"])
def test_numbers_that_are_not_finite_are_not_hidden(kind: str, bad: float) -> None:
    x = noise(3, 64)
    x[1, 37] = bad
    got = Projection([packed(kind, 9, 64)])(x)
    assert got[[0, 2]].isfinite().all()
    assert not got[1].isfinite().any()


def test_extreme_inputs() -> None:
    project = Projection([packed("Q4_1", 9, 64)])
    assert torch.equal(project(torch.zeros(2, 64)), torch.zeros(2, 9))
    for size in (1e-44, 1e-30, 1e30):
        x = size * torch.ones(1, 64)
        assert project(x).isfinite().all()
    assert project(torch.empty(0, 64)).shape == (0, 9)
    assert project(torch.zeros(2, 64), 3, 3).shape == (2, 3, 3)
    with pytest.raises(KvikError, match="9 outputs are not"):
        project(torch.zeros(2, 64), 2, 4)


W = {"cols": 64, "rows": 16}


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.zeros(2, 63), "n, 64"),
        (torch.zeros(64), "n, 64"),
        (torch.zeros(2, 64, dtype=torch.float64), "float64"),
        (torch.zeros(64, 2).T, "not contiguous"),
        (torch.zeros(2, 64, device="meta"), "meta"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(x: Tensor, says: str) -> None:
    with pytest.raises(KvikError, match=says):
        Projection([packed("Q4_1", 16, 64)])(x)
    end = LayerEnd(*[packed("F32", 64, 64)] * 4, activation="silu", ffn_norm=(torch.ones(64), 1e-5))
    with pytest.raises(KvikError, match=says):
        end(x, torch.zeros(2, 64))
    with pytest.raises(KvikError, match=says):
        end(torch.zeros(2, 64), x)


def test_weights_that_do_not_fit_are_refused() -> None:
    one, other = packed("Q4_1", 16, 64), packed("Q4_1", 16, 32)
    norm = (torch.ones(64), 1e-5)
    for build, says in (
        (lambda: Projection([]), "one to three"),
        (lambda: Projection([one] * 4), "one to three"),
        (lambda: Projection([one, other]), "of one input"),
        (lambda: Projection([one], [torch.ones(15)]), "vector of 16"),
        (lambda: Projection([one], [torch.ones(16).double()]), "float64"),
        (lambda: Projection([one], norm=(torch.ones(63), 1e-5)), "vector of 64"),
        (lambda: Projection([one], head_norms=[norm], head_dim=5), "no heads of 5"),
        (lambda: LayerEnd(one, one, one, one, activation="silu", ffn_norm=norm), "one layer"),
        (
            lambda: LayerEnd(*[packed("F32", 8, 8)] * 4, activation="relu", ffn_norm=norm),
            "no activation",
        ),
    ):
        with pytest.raises(KvikError, match=says):
            build()


@pytest.mark.parametrize("ids", [[-1], [16], [0, 1 << 40]])
def test_rows_out_of_range_are_refused(ids: list[int]) -> None:
    with pytest.raises(KvikError, match="of 16 rows"):
        packed("Q4_1", 16, 64).rows(ids)


def test_rows_are_chosen_by_whole_numbers() -> None:
    weight = packed("Q4_1", 16, 64)
    for ids in ([0.0], [[0]]):
        with pytest.raises(TypeError):
            weight.rows(ids)  # type: ignore[arg-type]
    assert torch.equal(weight.rows(range(16)[::3]), weight.rows(range(16))[::3])
    assert weight.rows([]).shape == (0, 64)


def test_tensors_that_cannot_be_packed_are_refused() -> None:
    raw = random_bytes("Q8_0", 4, 64)
    for call, says in (
        (lambda: pack(raw, "Q2_K", (4, 64)), "Q2_K cannot be packed"),
        (lambda: pack(raw, "Q8_0", (4, 63)), "cannot be packed"),
        (lambda: pack(raw, "Q8_0", (0, 64)), "cannot be packed"),
        (lambda: pack(raw, "Q8_0", (5, 64)), "bytes are no Q8_0 matrix of 5"),
        (lambda: pack(raw[:3], "Q8_0", (4, 64)), "bytes are no Q8_0"),
    ):
        with pytest.raises(KvikError, match=says):
            call()


@pytest.mark.parametrize("kind", PACKABLE)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(kind: str, bad: float) -> None:
    raw = random_bytes(kind, 9, 256).copy()
    if kind in FLOATS:
        value = torch.tensor(
            [bad], dtype={"F32": torch.float32, "F16": torch.float16}.get(kind, torch.bfloat16)
        )
        raw[8, -value.itemsize :] = value.view(torch.uint8).numpy()
    else:
        at = 208 if kind == "Q6_K" else 0
        raw[8, at : at + 2] = np.float16([bad]).view(np.uint8)
        if kind == "Q6_K":
            raw[8, 192:208] = 1
    with pytest.raises(KvikError, match="NaN or infinity"):
        pack(raw, kind, (9, 256))


def test_the_table_of_types_is_complete() -> None:
    assert set(CODED) | set(FLOATS) == set(PACKABLE)
    assert isinstance(packed("Q4_0", 1, 32), Packed)
