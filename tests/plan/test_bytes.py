"""Planned bytes are allocated bytes, the pool suffices, and known models weigh what they weigh."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tracers

from kvik.cache import KVCache, PagePool, Sequence, choose_slab
from kvik.plan import kv_bytes, pool_capacity, step_peak
from kvik.recipe import Evicting, Plan, Recipe
from kvik.recipe.plan import Group, page_count, pages_of
from kvik.spec.model import LayerSpec, ModelSpec, Rope

assert tracers.Heavy.names  # importing them registered them

KIB, MIB, GIB = 2**10, 2**20, 2**30


def model(*layers: LayerSpec) -> ModelSpec:
    return ModelSpec("test", "llama", layers, context=8192, vocab=96, hidden=48, ffn=64)


def uniform(layers: int, kv_heads: int, dim: int, heads: int = 64) -> ModelSpec:
    return model(*[LayerSpec("full", heads, kv_heads, dim, dim)] * layers)


FULL = LayerSpec("full", 4, 2, 8, 8, rope=Rope(8, 10_000.0))
SLIDING = LayerSpec("sliding", 4, 1, 16, 16, window=24, rope=Rope(16, 10_000.0))
LATENT = LayerSpec("latent", 4, 1, 24, 16, rope=Rope(8, 10_000.0, offset=16))
STATE = LayerSpec("state", 2, 2, 0, 0, state_shape=(2, 4, 4))
SHARED = LayerSpec("shared", 4, 2, 8, 8, rope=Rope(8, 10_000.0), source=1)
SPECS = {
    "full": model(FULL, FULL),
    "sliding": model(FULL, SLIDING),
    "latent": model(LATENT, FULL),
    "state": model(STATE, FULL, SHARED),
}
RECIPES = [
    "fp16",
    "int8/int4+page:7@1",
    "int8@1+fp32+page:1",
    "window:1",
    "window:9+page:4",
    "window:40+int4",
    "sinks:3+window:20+page:16",
    "sinks:40+window:20+page:7",
    "perchannel+page:16",
    "perchannel:4,residual=7/int8+page:8",
    "perchannel:8,residual=0/perchannel:4,residual=11+page:8",
    "perchannel:4,residual=3@1+int8+page:4",
    "perchannel:4,residual=7+window:20+page:8",
    "perchannel:1,residual=6+sinks:5,positions=original+window:9+page:2",
    "heavy:9,every=16@0+page:4",
    "heavy:20,every=3@0+int4+page:5",
    "spread:12@0",
]


POSITIONAL = [r for r in RECIPES if not any(w in r for w in ("heavy", "spread", "original"))]


def cases() -> list[tuple[str, str]]:
    """Every recipe with a window of the model's own, every third one with each other model."""
    chosen = [("sliding", recipe) for recipe in RECIPES if "original" not in recipe]
    for start, spec in enumerate(("full", "latent", "state")):
        for recipe in RECIPES[start::3]:
            pair = spec == "latent" and "/" in recipe
            choice = spec == "state" and "@" in recipe  # one layer keeps tokens, another shares it
            if not (pair or choice):
                chosen.append((spec, recipe))
    return chosen


def make(plan: Plan, tokens: int, sequences: int = 1) -> KVCache:
    """A cache in exactly the pool that the planner asks for."""
    slab = choose_slab(plan.page_bytes)
    capacity = pool_capacity(plan, tokens, slab, sequences)
    return KVCache(plan, PagePool(plan.page_bytes, capacity, slab_bytes=slab))


def step(cache: KVCache, work: dict[Sequence, int]) -> None:
    """One step with random q, k and v: the cache does not care where they come from."""
    cache.plan(list(work), list(work.values()))
    rows = sum(work.values())
    for index, layer in enumerate(cache.resolved.spec.layers):
        if layer.kind == "state":
            cache.write_state(index, cache.read_state(index) + 1)
            continue
        q = torch.randn(rows, layer.heads, layer.k_dim)
        k = torch.randn(rows, layer.kv_heads, layer.k_dim)
        v = torch.randn(rows, layer.kv_heads, layer.v_dim)
        shared, latent = layer.kind == "shared", layer.kind == "latent"
        cache.attend(index, q, None if shared else k, None if shared or latent else v)
    cache.commit()


@pytest.mark.parametrize(("spec", "recipe"), cases())
def test_planned_is_allocated(spec: str, recipe: str) -> None:
    plan = Recipe.parse(recipe).resolve(SPECS[spec])
    cache, chance = make(plan, 100), random.Random(recipe)
    sequence = cache.create()
    assert cache.nbytes(sequence) == kv_bytes(plan, 0).total
    while sequence.length < 90:
        step(cache, {sequence: chance.choice((1, 1, 2, 5, 13))})
        planned = kv_bytes(plan, sequence.length)
        assert cache.nbytes(sequence) == planned.total
        assert cache.pool.stats().used == planned.pages
        assert sequence.state.table_bytes == planned.tables + planned.state


@pytest.mark.parametrize(("spec", "recipe"), cases())
def test_the_planned_pool_suffices_for_steps_of_any_size(spec: str, recipe: str) -> None:
    """From many lengths, to many lengths: the pages before and after the step fit at once."""
    plan = Recipe.parse(recipe).resolve(SPECS[spec])
    cache = make(plan, 70)
    sequence = cache.create()
    while (left := 70 - sequence.length) > 0:
        for count in {1, 5, 16, 23, 32, left}:
            if count <= left:
                cache.plan([sequence], [count])
                cache.abort()
        step(cache, {sequence: min(left, 3)})


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(cases()), st.integers(1, 3), st.integers(1, 80), st.randoms())
def test_the_planned_pool_always_suffices(
    case: tuple[str, str], count: int, tokens: int, chance: Any
) -> None:
    """Any cut of up to ``tokens`` tokens for each of several sequences, ended and begun again."""
    plan = Recipe.parse(case[1]).resolve(SPECS[case[0]])
    cache = make(plan, tokens, count)
    sequences = [cache.create() for _ in range(count)]
    for _ in range(12):
        work = {}
        for sequence in sequences:
            if sequence.length == tokens:
                cache.free(sequence)
            left = tokens - sequence.length
            if chance.random() < 0.8:
                work[sequence] = left if chance.random() < 0.3 else chance.randint(1, left)
        if work:
            step(cache, work)
    assert cache.pool.nbytes >= cache.pool.stats().used
    for sequence in sequences:
        cache.free(sequence)
    assert cache.pool.stats().used == 0


def live_pages(cache: KVCache) -> dict[int, int]:
    """Pages in use of each size, from the pool's own books."""
    classes = zip(cache.pool.page_bytes, cache.pool._ledger.classes, strict=True)
    return {nbytes: one.used for nbytes, one in classes}


@pytest.mark.parametrize(("spec", "recipe"), cases())
def test_the_peak_of_a_step_is_what_growing_token_by_token_holds(spec: str, recipe: str) -> None:
    """Exact at every length where all heads peak together, else at most a page a head over."""
    plan = Recipe.parse(recipe).resolve(SPECS[spec])
    cache = make(plan, 90, 2)
    sequence = cache.create()
    most = dict.fromkeys(plan.page_bytes, 0)
    over = {n: sum(1 for g in plan.groups if g.evicting and g.main.nbytes == n) for n in most}
    for seen in range(1, 44 if any(over.values()) else 84):
        cache.plan([sequence], [1])
        most = {n: max(most[n], count) for n, count in live_pages(cache).items()}
        cache.abort()
        planned = step_peak(plan, seen)
        for nbytes, count in most.items():
            assert count <= planned[nbytes] <= count + over[nbytes], seen
        if any(over.values()):
            step(cache, {sequence: 1})
        else:  # tables are all that matters
            cache.plan([sequence], [1])
            cache.commit()


@pytest.mark.parametrize("recipe", ["int8", "perchannel:4,residual=7", "heavy:9,every=16@1"])
def test_the_peak_of_a_million_tokens_is_known_at_once(recipe: str) -> None:
    plan = Recipe.parse(recipe).resolve(SPECS["full"])
    start = time.perf_counter()
    peak = step_peak(plan, 1_000_000)
    assert time.perf_counter() - start < 0.5
    held = kv_bytes(plan, 1_000_000).pages
    assert held <= sum(n * count for n, count in peak.items()) <= held * 1.001 + 10 * max(peak)


def pages_by_token(group: Group, seen: int) -> tuple[int, int]:
    """Main and tail pages, token by token, from what the next query sees."""
    kept, codecs = group.kept, group.layers[0].codecs
    closed = [max(0, (seen - c.residual) // c.close_tokens * c.close_tokens) for c in codecs]
    main, tail = set(), set()
    for token in range(seen):
        if kept.window is not None and token >= kept.sinks and seen - token >= kept.window:
            continue
        if token < max(closed):
            main.add(token // group.tokens)
        if token >= min(closed):
            tail.add(token // group.tokens)
    return len(main), len(tail) if group.tail else 0


@pytest.mark.parametrize("recipe", POSITIONAL)
def test_bytes_are_pages_of_what_the_next_query_sees(recipe: str) -> None:
    plan = Recipe.parse(recipe).resolve(SPECS["sliding"])
    for seen in (*range(70), 255, 256, 257, 1000):
        pages = entries = 0
        for group in plan.groups:
            main, tail = pages_by_token(group, seen)
            pages += main * group.main.nbytes + tail * (group.tail.nbytes if group.tail else 0)
            entries += main + tail
        assert kv_bytes(plan, seen).pages == pages
        assert kv_bytes(plan, seen).tables == 8 * entries
        assert kv_bytes(plan, seen).state == 0


def test_state_is_counted_once_and_does_not_grow() -> None:
    plan = Recipe.parse("int8").resolve(SPECS["state"])
    assert [kv_bytes(plan, n).state for n in (0, 1, 1000)] == [4 * 2 * 4 * 4] * 3


def test_none_holds_nothing() -> None:
    plan = Recipe.parse("none").resolve(SPECS["full"])
    assert kv_bytes(plan, 4096).total == 0
    assert pool_capacity(plan, 4096, 64) == 0


# Facts about known models: (layers, KV heads, head dim), tokens, bytes at fp16.
LLAMA_3_8B, LLAMA_2_7B, LLAMA_2_70B = (32, 8, 128), (32, 32, 128), (80, 8, 128)
FACTS = [
    (LLAMA_3_8B, 4096, 512 * MIB),
    (LLAMA_3_8B, 32_768, 4 * GIB),
    (LLAMA_3_8B, 131_072, 16 * GIB),
    (LLAMA_2_7B, 4096, 2 * GIB),
    (LLAMA_2_7B, 131_072, 64 * GIB),
    ((80, 64, 128), 4096, 10 * GIB),  # Llama-2-70B counted as MHA
    ((80, 64, 128), 131_072, 320 * GIB),
    (LLAMA_2_70B, 4096, 1280 * MIB),
    (LLAMA_2_70B, 131_072, 40 * GIB),
    ((30, 3, 64), 4096, 4096 * 23_040),  # SmolLM2-135M
    ((32, 5, 64), 4096, 4096 * 40_960),  # SmolLM2-360M
    ((24, 2, 64), 4096, 4096 * 12_288),  # Qwen2.5-0.5B
    ((28, 8, 128), 4096, 4096 * 114_688),  # Qwen3-0.6B
    ((16, 8, 64), 4096, 4096 * 32_768),  # Llama-3.2-1B
]


@pytest.mark.parametrize(("shape", "tokens", "want"), FACTS)
def test_known_models(shape: tuple[int, int, int], tokens: int, want: int) -> None:
    layers, kv_heads, dim = shape
    heads = kv_heads * -(-64 // kv_heads)
    plan = Recipe.parse("fp16").resolve(uniform(layers, kv_heads, dim, heads))
    got = kv_bytes(plan, tokens)
    assert got.pages == want
    assert got.tables == tokens // 32 * 8, "8 bytes a page of 32 tokens"
    assert kv_bytes(Recipe.parse("fp32").resolve(plan.spec), tokens).pages == 2 * want


def test_gemma_3_270m() -> None:
    """18,432 bytes a token until its windows are full, 3,072 from then on."""
    slide = LayerSpec("sliding", 4, 1, 256, 256, window=512)
    full = LayerSpec("full", 4, 1, 256, 256)
    plan = Recipe.parse("fp16").resolve(model(*([slide] * 5 + [full]) * 3))
    assert kv_bytes(plan, 256).pages == 256 * 18_432
    grown = kv_bytes(plan, 32_768).pages - kv_bytes(plan, 1024).pages
    assert grown == (32_768 - 1024) * 3072


def test_windows_hold_constant_memory() -> None:
    plan = Recipe.parse("sinks:4+window:252").resolve(uniform(30, 3, 64, 9))
    sizes = {kv_bytes(plan, n).total for n in range(512, 20_000, 32)}
    assert len(sizes) == 1
    assert max(kv_bytes(plan, n).total for n in range(20_000)) <= 10 * 32 * 23_040 + 1000
    slab = choose_slab(plan.page_bytes)
    assert pool_capacity(plan, 10**6, slab) == pool_capacity(plan, 1000, slab)


def test_planning_any_length_takes_no_time() -> None:
    start = time.perf_counter()
    for recipe in ("int8", "perchannel", "sinks:4+window:2044", "heavy:512,every=32"):
        plan = Recipe.parse(recipe).resolve(uniform(30, 3, 64, 9))
        kv_bytes(plan, 10**15)
        pool_capacity(plan, 10**5 if "heavy" in recipe else 10**15, choose_slab(plan.page_bytes))
    assert time.perf_counter() - start < 5


@dataclass(frozen=True)
class Budgeted(Evicting):
    """Any budget for every event."""

    every: int
    budgets: tuple[int, ...]

    @property
    def interval(self) -> int:
        return self.every

    def budget(self, seen: int, layer: int, head: int) -> int:
        return self.budgets[seen // self.every % len(self.budgets)]


@given(st.integers(1, 7), st.lists(st.integers(0, 60), min_size=1, max_size=9), st.integers(0, 200))
def test_stored_tokens_are_those_of_a_simulation(every: int, budgets: list[int], seen: int) -> None:
    policy = Budgeted(every, tuple(budgets))
    held = most = 0
    for position in range(seen):
        if position and position % every == 0:
            held = min(held, policy.budget(position, 0, 0))
        held += 1
        most = max(most, held)
    assert policy.stored(seen, 0, 0) == held
    assert policy.most_stored(seen, 0, 0) == most


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=3), st.integers(1, 40)
)
def test_pages_of_ranges(pairs: list[tuple[int, int]], tokens: int) -> None:
    """Ascending ranges, also such as share a page."""
    cuts = sorted({x for pair in pairs for x in pair})
    ranges = list(zip(cuts[::2], cuts[1::2], strict=False))
    want = sorted({t // tokens for a, b in ranges for t in range(a, b)})
    assert pages_of(ranges, tokens) == want
    assert page_count(ranges, tokens) == len(want)
