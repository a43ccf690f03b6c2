"""Attention by the native library: against the oracle, and bitwise against itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvik import native
from kvik.cache import KVCache, PagePool, choose_slab
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
    "int8+window:40",
    "sinks:4+window:60",
    "int8+sinks:4+window:300",
    "int4+sinks:4+window:60,positions=original",
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
    outs: list[list[Tensor]] = [[] for _ in inputs]
    total = len(inputs[0][0])
    exact.plan(total)
    return [
        exact.attend(i, q.double(), k.double(), v.double())[0][-last:]
        for i, (q, k, v) in enumerate(inputs)
    ]


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_equals_the_oracle(recipe: str) -> None:
    spec = model(layer(), layer(dim=32, heads=4, kv=4, softcap=20.0))
    inputs = streams(spec, 330)
    outs, _ = run(cache_of(spec, recipe), inputs, [330])
    wanted = oracle(spec, recipe, inputs, 330)
    for got, exact, (_, _, v) in zip(outs, wanted, inputs, strict=True):
        assert (got.double() - exact).abs().max() <= 1e-4 * v.abs().max()


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
            again = run(cache_of(spec, recipe + page), inputs, chunks)
            for one, other in zip(whole[0] + whole[1], again[0] + again[1], strict=True):
                assert torch.equal(one, other)
    finally:
        native.set_threads(LIBRARY, before)
