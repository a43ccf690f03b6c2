"""The page pool against a dictionary."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from kvik.cache import PagePool, choose_slab
from kvik.errors import CapacityError
from kvik.plan import pool_capacity
from kvik.recipe import Recipe
from kvik.spec.model import LayerSpec, ModelSpec

SIZES = (64, 192, 448, 640)
SLAB = 1920  # 30, 10, 4 and 3 pages; 0, 0, 128 and 0 bytes left over


def ids(*pages: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(pages, dtype=np.int32)


class PoolMachine(RuleBasedStateMachine):
    """Random work on a small pool; the model is a dict from page id to (size, references)."""

    pages = Bundle("pages")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(SIZES, 6 * SLAB, slab_bytes=SLAB, poison=True)
        self.pool.buffer.fill_(0)
        self.sizes: dict[int, int] = {}
        self.live: Counter[int] = Counter()
        self.marks: dict[int, int] = {}

    def used(self) -> int:
        return sum(self.sizes[page] for page in self.live)

    def room(self, size: int) -> int:
        """Pages of a size that must still fit: empty slabs serve every size."""
        per = SLAB // size
        slabs: dict[int, set[int]] = {}
        for page in self.live:
            slabs.setdefault(page * 64 // SLAB, set()).add(page)
        own = [s for s, p in slabs.items() if {self.sizes[x] for x in p} == {size}]
        return (6 - len(slabs)) * per + sum(per - len(slabs[s]) for s in own)

    @rule(target=pages, size=st.sampled_from(SIZES), count=st.integers(0, 40))
    def alloc(self, size: int, count: int) -> Any:
        before = self.pool.stats()
        if count > self.room(size):
            with pytest.raises(CapacityError, match="KV pool is full"):
                self.pool.alloc(size, count)
            assert self.pool.stats() == before, "a refused request changes nothing"
            return multiple()
        got = self.pool.alloc(size, count)
        assert got.dtype == np.int32
        assert len(got) == count == len(set(got.tolist()))
        for page in got.tolist():
            assert page not in self.live
            self.sizes[page], self.live[page] = size, 1
            self.write(page)
        return multiple(*got.tolist())

    def write(self, page: int) -> None:
        self.marks[page] = len(self.marks) % 200 + 1
        self.pool.buffer[page * 64 : page * 64 + self.sizes[page]] = self.marks[page]

    @rule(some=st.lists(pages, max_size=6))
    def retain(self, some: list[int]) -> None:
        if all(self.live[p] > 0 for p in some):
            self.pool.retain(ids(*some))
            self.live.update(some)
        else:
            self.refused(self.pool.retain, some)

    @rule(some=st.lists(pages, max_size=6))
    def release(self, some: list[int]) -> None:
        if all(self.live[p] >= n for p, n in Counter(some).items()):
            self.pool.release(ids(*some))
            self.forget(some)
        else:
            self.refused(self.pool.release, some)

    @rule(page=consumes(pages))
    def release_last(self, page: int) -> None:
        count = self.live[page]
        if count:
            self.pool.release(ids(*[page] * count))
            self.forget([page] * count)

    def refused(self, work: Any, some: list[int]) -> None:
        before = self.pool.stats()
        with pytest.raises(ValueError, match="page was"):
            work(ids(*some))
        assert self.pool.stats() == before

    def forget(self, some: list[int]) -> None:
        self.live.subtract(some)
        for page in set(some):
            if self.live[page] == 0:
                size = self.sizes[page]
                freed = self.pool.buffer[page * 64 : page * 64 + size]
                assert bool((freed == 255).all()), "freed pages are poisoned"
        self.live = +self.live

    @invariant()
    def bytes_add_up(self) -> None:
        stats = self.pool.stats()
        assert stats.used == self.used()
        assert stats.used + stats.free + stats.stranded == stats.total == 6 * SLAB
        assert min(stats.used, stats.free, stats.stranded) >= 0

    @invariant()
    def live_pages_keep_their_place_and_content(self) -> None:
        end = 0
        for page in sorted(self.live):
            assert page * 64 >= end, "live pages overlap"
            end = page * 64 + self.sizes[page]
            assert end <= 6 * SLAB
            assert page * 64 // SLAB == (end - 1) // SLAB, "a page lies in one slab"
            content = self.pool.buffer[page * 64 : end]
            assert bool((content == self.marks[page]).all()), "a live page was overwritten"

    @invariant()
    def counts_are_right(self) -> None:
        live = sorted(self.live)
        assert self.pool.references(ids(*live)).tolist() == [self.live[p] for p in live]


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_repeated_ids_count_each_time() -> None:
    pool = PagePool((64,), 640)
    (page,) = pool.alloc(64, 1).tolist()
    pool.retain(ids(page, page, page))
    assert pool.references(ids(page)).tolist() == [4]
    pool.release(ids(page, page))
    with pytest.raises(ValueError, match="released more often"):
        pool.release(ids(page, page, page))
    assert pool.references(ids(page)).tolist() == [2], "a refused release changes nothing"
    pool.release(ids(page, page))
    assert pool.stats().used == 0
    again = pool.alloc(64, 10)
    assert len(set(again.tolist())) == 10, "the page is free once, not twice"


def test_a_freed_page_is_neither_retained_nor_released() -> None:
    pool = PagePool((64, 128), 1280)
    page = pool.alloc(64, 1)
    pool.release(page)
    for work, words in ((pool.retain, "freed page"), (pool.release, "released more often")):
        with pytest.raises(ValueError, match=words):
            work(page)
    for size in (64, 128):
        pool.release(pool.alloc(size, pool.nbytes // size))


def test_nothing_is_something() -> None:
    pool = PagePool((64,), 0)
    assert pool.nbytes == 0
    assert pool.alloc(64, 0).size == 0
    pool.retain(ids())
    pool.release(ids())
    with pytest.raises(CapacityError, match="1 pages of 64 bytes asked, 0 free of 0 bytes"):
        pool.alloc(64, 1)
    assert PagePool((), 1000).stats().used == 0


def test_freed_pages_come_back_first_and_slabs_empty_out() -> None:
    pool = PagePool((64,), 64 * 30, slab_bytes=640)
    pages = pool.alloc(64, 10)
    assert pages.tolist() == sorted(pages.tolist())
    pool.release(pages[[3, 7, 5]])
    assert pool.alloc(64, 3).tolist() == pages[[3, 5, 7]].tolist()


def test_empty_slabs_serve_other_sizes() -> None:
    pool = PagePool((64, 640), 6400, slab_bytes=640)
    small = pool.alloc(64, 100)
    with pytest.raises(CapacityError):
        pool.alloc(640, 1)
    pool.release(small[10:])
    assert len(pool.alloc(640, 9)) == 9
    with pytest.raises(CapacityError):
        pool.alloc(64, 1)
    pool.release(small[:1])
    assert pool.alloc(64, 1).tolist() == small[:1].tolist()


def test_addresses_are_64_byte_aligned() -> None:
    pool = PagePool((192, 448), 19200, slab_bytes=1920)
    assert pool.buffer.data_ptr() % 64 == 0
    for size in (192, 448):
        pages = pool.alloc(size, 8)
        assert (pages.astype(np.int64) * 64 + size <= pool.nbytes).all()


def test_impossible_pools_are_refused() -> None:
    for sizes in ((0,), (-64,), (65,), (64, 100)):
        with pytest.raises(ValueError, match="multiples of 64"):
            PagePool(sizes, 1000)
    with pytest.raises(ValueError, match="do not hold pages"):
        PagePool((640,), 6400, slab_bytes=576)
    with pytest.raises(CapacityError, match="ask for less context or a smaller recipe"):
        PagePool((64,), 2**60)
    with pytest.raises(CapacityError, match="at most 137,438,953,472 bytes"):
        PagePool((64,), 2**37 + 1)


@pytest.mark.parametrize(
    "text",
    [
        "fp16",
        "int8/int4",
        "fp16@0-1,-1+int4",
        "int8@0-4+int4+page:16@3+page:64@9",
        "page:1+int8",
        "page:7+int4",
        "page:16@0+fp32",
        "sinks:4@0-5+window:60@0-5+int8",
    ],
)
def test_slabs_strand_at_most_two_percent(text: str) -> None:
    layer = LayerSpec("full", 9, 3, 64, 64)
    latent = LayerSpec("latent", 16, 1, 576, 512)
    layers = (*[layer] * 10, latent) if "/" not in text else (layer,) * 10
    plan = Recipe.parse(text).resolve(ModelSpec("m", "llama", layers, 8192, 96, 48, 64))
    slab = choose_slab(plan.page_bytes)
    for size in plan.page_bytes:
        assert slab >= size
        assert slab % size <= 0.02 * slab
    pool = PagePool(plan.page_bytes, pool_capacity(plan, 4096, slab), slab_bytes=slab)
    for size in plan.page_bytes:
        while pool.stats().free >= slab * len(plan.page_bytes):
            pool.alloc(size, 1)
    assert pool.stats().stranded <= 0.02 * pool.nbytes


def test_slabs_for_any_sizes() -> None:
    chance = np.random.default_rng(0)
    for _ in range(300):
        sizes = (chance.integers(1, 5000, chance.integers(1, 5)) * 64).tolist()
        slab = choose_slab(sizes)
        assert slab % 64 == 0
        assert slab >= max(sizes)
        assert all(slab % size <= 0.02 * slab for size in sizes)


def test_the_pool_touches_no_memory_before_it_is_used() -> None:
    """A pool far larger than what is used costs nothing yet."""
    pool = PagePool((64 * 1024,), 2**33)
    page = int(pool.alloc(64 * 1024, 1)[0])
    pool.buffer[page * 64 : page * 64 + 10] = 1
    assert pool.nbytes >= 2**33
    assert torch.equal(pool.buffer[page * 64 : page * 64 + 3], torch.ones(3, dtype=torch.uint8))
