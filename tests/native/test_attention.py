"""Attention by the native library: against the oracle, and bitwise against itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from kvik import native
from kvik.cache import KVCache, PagePool, choose_slab
from kvik.errors import KvikError
from kvik.ops import Keys, Scoring, native_attention, reference
from kvik.recipe import Recipe
from kvik.spec.model import LayerSpec, ModelSpec, Rope
from kvik.testing.oracle import OracleCache

LIBRARY = native.library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the native library is not installed")

RECIPES = (
    "fp32",
    "fp16",
    "bf16",
    "int8",
    "int4",
    "int8/int4",
    "int4/fp16",
    "int8:range=asym",
    "int4:range=sym",
    "int8:group=16",
    "int4:group=16",
    "window:100",
    "window:1",
    "window:9+page:4",
    "int8+window:40",
    "sinks:4+window:60",
    "int8+sinks:4+window:300",
    "int4+sinks:4,positions=original+window:60",
)


def layer(dim: int = 64, heads: int = 6, kv: int = 2, **more: object) -> LayerSpec:
    rope = more.pop("rope", Rope(dim, 10_000.0))
    return LayerSpec("full", heads, kv, dim, dim, rope=rope, **more)  # type: ignore[arg-type]


def model(*layers: LayerSpec) -> ModelSpec:
    return ModelSpec("attention", "llama", layers, 4096, 96, 48, 64)


Streams = list[tuple[Tensor, Tensor, Tensor]]


def streams(spec: ModelSpec, count: int, seed: int = 0) -> Streams:
    """q, k, v [count, heads, D] of every layer; some channels and tokens stand out."""
    torch.manual_seed(seed)
    found = []
    for one in spec.layers:
        q = torch.randn(count, one.heads, one.k_dim) * 2
        k = torch.randn(count, one.kv_heads, one.k_dim)
        k[:, :, 3] *= 8
        v = torch.randn(count, one.kv_heads, one.v_dim)
        v[::17] *= 5
        found.append((q, k, v))
    return found


def cache_of(spec: ModelSpec, recipe: str, tokens: int = 1024) -> KVCache:
    plan = Recipe.parse(recipe).resolve(spec)
    slab = choose_slab(plan.page_bytes)
    pages = 4 * sum(plan.page_bytes) * -(-tokens // min(g.tokens for g in plan.groups))
    pool = PagePool(plan.page_bytes, -(-pages // slab + 4) * slab, slab_bytes=slab)
    pool.buffer.fill_(0xFF)  # NaN in every float format
    return KVCache(plan, pool)


def run(cache: KVCache, inputs: Streams, chunks: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and log-sum-exps of every layer over the whole text."""
    sequence, low = cache.create(), 0
    outs: list[list[Tensor]] = [[] for _ in inputs]
    lses: list[list[Tensor]] = [[] for _ in inputs]
    for count in chunks:
        cache.plan([sequence], [count])
        for i, (q, k, v) in enumerate(inputs):
            rows = slice(low, low + count)
            shared = cache.resolved.spec.layers[i].kind == "shared"
            new = (None, None) if shared else (k[rows], v[rows])
            out, lse = cache.attend(i, q[rows], *new)
            outs[i].append(out)
            lses[i].append(lse)
        cache.commit()
        low += count
    return [torch.cat(o) for o in outs], [torch.cat(s) for s in lses]


def cut(total: int, size: int) -> list[int]:
    return [min(size, total - low) for low in range(0, total, size)]


def oracle(spec: ModelSpec, recipe: str, inputs: Streams, last: int) -> list[Tensor]:
    """Outputs of the last tokens, in float64."""
    exact = OracleCache(Recipe.parse(recipe).resolve(spec))
    total = len(inputs[0][0])
    exact.plan(total)
    return [
        exact.attend(i, q.double(), k.double(), v.double())[0][-last:]
        for i, (q, k, v) in enumerate(inputs)
    ]


# Keys are rotated in float32 here and in float64 there: now and then a code falls to the other side
# of a rounding, which is a difference of the codes and not of the attention to them.
@pytest.mark.parametrize(
    ("recipe", "rotated", "bound"),
    [(recipe, False, 1e-4) for recipe in RECIPES]
    + [(recipe, True, 1e-4) for recipe in ("fp32", "bf16", "sinks:4+window:60")]
    + [(recipe, True, 1e-3) for recipe in ("int8", "int4", "int8+sinks:4+window:300")],
)
def test_it_equals_the_oracle(recipe: str, rotated: bool, bound: float) -> None:
    turn = {} if rotated else {"rope": None}
    spec = model(layer(**turn), layer(dim=32, heads=4, kv=4, softcap=20.0, **turn))
    inputs = streams(spec, 290)
    wanted = oracle(spec, recipe, inputs, 290)
    for chunks in ([290], [270] + [1] * 20):
        outs, _ = run(cache_of(spec, recipe), inputs, chunks)
        for got, exact, (_, _, v) in zip(outs, wanted, inputs, strict=True):
            assert (got.double() - exact).abs().max() <= bound * v.abs().max()


@pytest.mark.parametrize("recipe", RECIPES)
def test_cuts_pages_and_threads_change_no_bit(recipe: str) -> None:
    assert LIBRARY is not None
    spec = model(layer(), layer(dim=32, heads=4, kv=4))
    total = 600
    inputs = streams(spec, total, seed=1)
    whole = run(cache_of(spec, recipe), inputs, [total])
    before = native.threads(LIBRARY)
    try:
        for chunks, page, threads in (
            (cut(total, 64), "", 2),
            (cut(total, 7), "+page:24", 4),
            ([500] + [1] * 100, "", 1),
            ([1] * 20 + [580], "+page:7", 2),
            ([300, 8, 9, 283], "+page:256", 3),
        ):
            native.set_threads(LIBRARY, threads)
            own = recipe if "page" in recipe else recipe + page
            again = run(cache_of(spec, own), inputs, chunks)
            for one, other in zip(whole[0] + whole[1], again[0] + again[1], strict=True):
                assert torch.equal(one, other)
    finally:
        native.set_threads(LIBRARY, before)


@pytest.mark.parametrize("recipe", ["int8", "int4", "int8/int4"])
@pytest.mark.parametrize("dim", [96, 128, 160, 256])
def test_heads_of_any_size_are_the_same_however_they_are_cut(dim: int, recipe: str) -> None:
    """Sizes with code of their own and one without: token by token as in a whole prompt."""
    spec = model(layer(dim=dim, heads=3, kv=1))
    inputs = streams(spec, 290, seed=dim)
    (whole,), (lse,) = run(cache_of(spec, recipe), inputs, [290])
    (parts,), (other,) = run(cache_of(spec, recipe), inputs, [260] + [1] * 30)
    assert torch.equal(whole, parts)
    assert torch.equal(lse, other)
    (exact,) = oracle(spec, recipe, [tuple(x[:60] for x in inputs[0])], 60)  # type: ignore[list-item]
    assert (whole[:60].double() - exact).abs().max() <= 1e-3 * inputs[0][2].abs().max()


def test_a_wrong_page_is_seen() -> None:
    spec = model(layer())
    inputs = streams(spec, 100)
    right, _ = run(cache_of(spec, "int8"), inputs, [60, 40])
    cache = cache_of(spec, "int8")
    sequence = cache.create()
    for low, high in ((0, 60), (60, 100)):
        q, k, v = (x[low:high] for x in inputs[0])
        cache.plan([sequence], [high - low])
        wrong, _ = cache.attend(0, q, k, v)
        cache.commit()
        page = int(sequence.state.main[0].pages[0])
        cache.pool.buffer[page * 64 : page * 64 + 512] = 1
    assert not torch.equal(right[0][60:], wrong)


def test_sequences_in_one_batch_do_not_touch_each_other() -> None:
    spec = model(layer(), layer(dim=32, heads=4, kv=4))
    cache = cache_of(spec, "int8+window:70", 4096)
    lengths, extra = (300, 1, 64, 17), (1, 9, 1, 33)
    texts = [streams(spec, a + b, seed=a) for a, b in zip(lengths, extra, strict=True)]
    alone = [
        run(cache_of(spec, "int8+window:70"), text, [a, b])[0]
        for text, a, b in zip(texts, lengths, extra, strict=True)
    ]
    sequences = [cache.create() for _ in texts]
    starts, counts = [0] * 4, list(lengths)
    for _ in range(2):
        cache.plan(sequences, counts)
        for i in range(2):
            rows = [
                [x[low : low + n] for x in text[i]]
                for text, low, n in zip(texts, starts, counts, strict=True)
            ]
            q, k, v = (torch.cat(parts) for parts in zip(*rows, strict=True))
            out, _ = cache.attend(i, q, k, v)
            for part, mine, low, n in zip(out.split(counts), alone, starts, counts, strict=True):
                assert torch.equal(part, mine[i][low : low + n])
        cache.commit()
        starts, counts = list(lengths), list(extra)


def test_what_is_not_finite_stays_with_its_own_token() -> None:
    spec = model(layer())
    inputs = streams(spec, 40)
    inputs[0][0][5] = float("nan")
    out, lse = run(cache_of(spec, "int8"), inputs, [40])
    assert out[0][5].isnan().all()
    assert lse[0][5].isnan().all()
    assert out[0][:5].isfinite().all()
    assert out[0][6:].isfinite().all()


@pytest.mark.parametrize("recipe", ["int8:range=asym", "int8", "int4", "int4:range=sym"])
def test_the_widest_heads_have_no_sums_that_overflow(recipe: str) -> None:
    """Flat queries; keys near one end of their range, and in every second token near the other."""
    spec = model(layer(dim=512, heads=2, kv=1, rope=None))
    torch.manual_seed(1)
    q, k = torch.ones(70, 2, 512), 1.0 - torch.rand(70, 1, 512) / 20
    k[:, :, ::32] = -1.0
    k[1::2] *= -1.0
    q /= 8  # else a single kind of token would have all the weight
    inputs = [(q, k, torch.randn(70, 1, 512))]
    (wanted,) = oracle(spec, recipe, inputs, 70)
    for chunks in ([70], [69, 1]):
        (got,), _ = run(cache_of(spec, recipe), inputs, chunks)
        assert (got.double() - wanted).abs().max() <= 1e-4 * inputs[0][2].abs().max()


def test_what_one_token_outweighs_is_lost_to_a_thousandth_at_most() -> None:
    """Beside a weight of 1 the others are e^-11.2 each, which 16 bits round to nothing."""
    spec, count = model(layer(rope=None)), 64
    q, k, v = torch.zeros(count, 6, 64), torch.zeros(count, 2, 64), torch.ones(count, 2, 64)
    k[0, :, 0], v[0] = 1.0, -1.0
    q[:, :, 0] = 11.2 * 64**0.5
    inputs = [(q, k, v)]
    for chunks in ([count], [count - 1, 1]):
        outs, _ = run(cache_of(spec, "int8"), inputs, chunks)
        off = (outs[0].double() - oracle(spec, "int8", inputs, count)[0]).abs().max()
        assert off <= 2.0**-10


@pytest.mark.parametrize("softcap", [None, 15.0])
@pytest.mark.parametrize("sinks", [0, 4])
def test_explicit_entries_equal_the_reference(sinks: int, softcap: float | None) -> None:
    torch.manual_seed(3)
    h, g, n, e, d, dv = 2, 3, 37, 600, 64, 32
    q, second = torch.randn(2, h, g, n, d)
    position = torch.arange(e)
    first = position + torch.randint(0, 3, (e,))
    until = torch.where(torch.rand(e) < 0.3, position + 50, 10_000)
    keys = Keys(torch.randn(h, e, d), torch.randn(h, e, dv), position, first, until, sinks)
    at = torch.arange(e - n, e)
    scoring = Scoring(d**-0.5, softcap)
    q_sinks = second if sinks else None
    out, lse = native_attention.attend_entries(q, at, keys, scoring, q_sinks)
    exact, exact_lse = reference.attend(q, at, keys, scoring, q_sinks)
    assert (out - exact).abs().max() <= 1e-5 * keys.v.abs().max()
    assert (lse - exact_lse).abs().max() <= 1e-5
    mass = native_attention.mass_of_entries(q, at, keys, scoring, lse, q_sinks)
    assert (mass - reference.mass(q, at, keys, scoring, exact_lse, q_sinks)).abs().max() <= 1e-4


@pytest.mark.parametrize(
    ("recipe", "dim", "heads", "kv"),
    [
        ("int8/int4", 64, 6, 2),
        ("int4", 64, 9, 3),
        ("int8", 80, 4, 4),
        ("int4/int8", 96, 8, 2),
        ("fp16", 128, 5, 5),
        ("bf16/int4:range=asym", 256, 4, 1),
        ("int8:range=asym+sinks:4+window:300", 64, 15, 3),
    ],
)
def test_every_variant_gives_the_same_bits(recipe: str, dim: int, heads: int, kv: int) -> None:
    assert LIBRARY is not None
    spec = model(layer(dim, heads, kv))
    inputs = streams(spec, 700)
    used, found = native.variant(LIBRARY), []
    try:
        for name in native.variants(LIBRARY):
            native.select(LIBRARY, name)
            found.append(run(cache_of(spec, recipe), inputs, [680] + [1] * 20)[0][0])
    finally:
        native.select(LIBRARY, used)
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_hostile_input_is_refused() -> None:
    spec = model(layer())
    q, k, v = streams(spec, 10)[0]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> None:
        cache = cache_of(spec, "int8")
        cache.plan([cache.create()], [10])
        cache.attend(0, q, k, v)

    for wrong in ((q[:9], k, v), (q, k[:, :1], v), (q, k, v[..., :32]), (q, k.double(), v)):
        with pytest.raises(KvikError):
            attend(*wrong)
    strided = torch.randn(64, 6, 10).permute(2, 1, 0)
    attend(strided, k, v)  # copied, not misread
    pool, number = torch.zeros(640, dtype=torch.uint8), np.zeros(1, dtype=np.int32)
    for page in (10, -2):
        with pytest.raises(KvikError, match="pages that the pool does not have"):
            native_attention.NativeTables(pool, [number], [number + np.int32(page)], 1, 16)
    for wrong in (number.astype(np.int64), number.reshape(1, 1), np.zeros(4, np.int32)[::2]):
        with pytest.raises(KvikError, match="contiguous arrays of int32"):
            native_attention.NativeTables(pool, [wrong], [wrong], 0, 16)
    with pytest.raises(KvikError, match="do not belong together"):
        native_attention.NativeTables(pool, [number], [number, number], 0, 16)
    with pytest.raises(KvikError, match="do not belong together"):
        native_attention.NativeTables(pool, [number], [number[:0]], 0, 16)
    tables = native_attention.NativeTables(pool, [number], [number], 0, 16)
    nothing = native_attention.NativeTables(pool, [number[:0]], [number[:0]], 0, 16)
    for of, start, count in ((tables, 16, 1), (tables, -16, 1), (tables, 15, 2), (nothing, 0, 1)):
        with pytest.raises(KvikError, match="no page for its newest tokens"):
            native_attention.NativeBatch(of, [start], [count])
    with pytest.raises(KvikError, match="no page for its newest tokens"):
        native_attention.NativeBatch(tables, [0, 0], [1, 1])
