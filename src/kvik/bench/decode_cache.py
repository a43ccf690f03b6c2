"""Caches that are full before anything is timed, and the steps that are timed on them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvik.cache import KVCache, PagePool, choose_slab
from kvik.cache.swap import swap_in, swap_out
from kvik.cache.table import Sequence as CacheSequence
from kvik.errors import CapacityError, RecipeError
from kvik.machine import available_memory, human_bytes
from kvik.models import Model
from kvik.ops.native_attention import attend_pages
from kvik.plan import kv_bytes, pool_capacity
from kvik.recipe import Recipe

CHUNK = 512


@dataclass(frozen=True)
class Load:
    """``batch`` sequences with ``context`` tokens in the cache each, that ``extra`` may follow."""

    context: int
    batch: int
    extra: int = 0

    @property
    def longest(self) -> int:
        """Tokens of a sequence in the end."""
        return self.context + self.extra


def needed_bytes(model: Model, recipe: Recipe, load: Load) -> int:
    """Bytes that the sequences hold in the end; RecipeError for a recipe that caches nothing."""
    plan = recipe.resolve(model.spec)
    if plan.recompute or not plan.groups:
        raise RecipeError(f"{recipe} caches no tokens, so there is nothing to read")
    return load.batch * kv_bytes(plan, load.longest).total


def check_memory(need: int, what: str) -> None:
    """CapacityError when so many bytes are not available."""
    have = available_memory()
    if need > have:
        raise CapacityError(
            f"{what} needs {human_bytes(need)} of KV and {human_bytes(have)} are available; "
            "measure fewer recipes at a time, a shorter --context or a smaller --batch"
        )


class Batch:
    """Sequences of one model under one recipe, each in pages of its own."""

    def __init__(self, model: Model, recipe: Recipe, load: Load) -> None:
        self.model, self.recipe, self.load = model, recipe, load
        plan = recipe.resolve(model.spec)
        slab = choose_slab(plan.page_bytes)
        # One more: copying a sequence holds it twice.
        capacity = pool_capacity(plan, load.longest, slab, load.batch + 1)
        self.cache = KVCache(plan, PagePool(plan.page_bytes, capacity, slab_bytes=slab))
        self.sequences: list[CacheSequence] = []
        self._next = [0] * load.batch

    @property
    def kv_bytes(self) -> int:
        """Bytes that the allocator holds for the sequences: pages, tables and states."""
        return self.cache.nbytes(*self.sequences)

    def fill(self, seed: int = 0) -> None:
        """Random K and V for ``load.context`` tokens of every sequence; no weight is read.

        They go the cache's usual way: rotated, encoded, evicted where the recipe evicts. The
        first sequence is written so, the others are copies of it in pages of their own.
        """
        self.free()
        draw = torch.Generator().manual_seed(seed)
        first = self.cache.create()
        for start in range(0, self.load.context, CHUNK):
            count = min(CHUNK, self.load.context - start)
            self.cache.plan([first], [count])
            for inputs in random_inputs(self.model, count, draw):
                self.cache.attend(*inputs)
            self.cache.commit()
        held = swap_out(self.cache, [self.cache.fork(first)])
        others = [swap_in(self.cache, held)[0] for _ in range(self.load.batch - 1)]
        self.sequences = [first, *others]

    def step(self) -> float:
        """Seconds of one greedy token for every sequence, all of kvik's own work included."""
        start = time.perf_counter()
        self.cache.plan(self.sequences, [1] * len(self.sequences))
        logits = self.model.forward(self._next, self.cache.at, self.cache)
        self.cache.commit()
        # By numpy, as the engine does: of so wide rows torch takes ten times as long.
        self._next = logits.numpy().argmax(1).tolist()
        return time.perf_counter() - start

    def attend(self, draw: torch.Generator) -> float:
        """Seconds of the attention of a step alone."""
        count = len(self.sequences)
        self.cache.plan(self.sequences, [1] * count)
        try:
            return attention_seconds(self.cache, list(random_inputs(self.model, count, draw)))
        finally:
            self.cache.abort()

    def prompt(self, chunk: int = CHUNK) -> tuple[float, int]:
        """Computes the prompts from nothing, ``chunk`` tokens a step shared by all sequences.

        Returns the seconds, and the bytes of K and V held after each step added up.
        """
        model, load = self.model, self.load
        self.free()
        self.sequences = [self.cache.create() for _ in range(load.batch)]
        share, moved, seconds = max(1, chunk // load.batch), 0, 0.0
        for low in range(0, load.context, share):
            part = torch.arange(low, min(low + share, load.context))
            last = int(part[-1]) == load.context - 1
            ids = (part * 7919 % model.spec.vocab).repeat(load.batch)
            rows = torch.arange(1, load.batch + 1) * len(part) - 1 if last else part[:0]
            start = time.perf_counter()
            self.cache.plan(self.sequences, [len(part)] * load.batch)
            model.forward(ids, self.cache.positions, self.cache, rows)
            self.cache.commit()
            seconds += time.perf_counter() - start
            moved += self.kv_bytes
        return seconds, moved

    def free(self) -> None:
        """Gives every page back."""
        for sequence in self.sequences:
            self.cache.free(sequence)
        self.sequences = []


Inputs = tuple[int, Tensor, Tensor | None, Tensor | None]


def random_inputs(model: Model, rows: int, draw: torch.Generator) -> Iterator[Inputs]:
    """For every layer that caches tokens its number, and random queries, keys and values."""

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(model.decoder.dtype)

    for index, layer in enumerate(model.spec.layers):
        if layer.kind == "state":
            continue
        own = layer.kind != "shared"
        q = some(rows, layer.heads, layer.k_dim)
        k = some(rows, layer.kv_heads, layer.k_dim) if own else None
        v = some(rows, layer.kv_heads, layer.v_dim) if own and layer.kind != "latent" else None
        yield index, q, k, v


def attention_seconds(cache: KVCache, inputs: Sequence[Inputs]) -> float:
    """Of every layer in a planned step, one right after another.

    Where the native kernels attend the pages, their calls alone: a step of packed layers makes
    them without returning to Python.
    """
    native = all(q.dtype == torch.float32 for _, q, *_ in inputs)
    places = [cache.place(index) if native else None for index, *_ in inputs]
    start = time.perf_counter()
    for (index, q, k, v), place in zip(inputs, places, strict=True):
        if place is None:
            cache.attend(index, q, k, v)
        else:
            attend_pages(place, q, k, v)
    return time.perf_counter() - start
