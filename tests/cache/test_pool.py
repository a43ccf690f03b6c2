"""The page pool against a dictionary."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import psutil
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
SLABS = 6
SLAB = 1920  # 30, 10, 4 and 3 pages; 0, 0, 128 and 0 bytes left over


def ids(*pages: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(pages, dtype=np.int32)


class PoolMachine(RuleBasedStateMachine):
    """Random work on a small pool; the model is two counts a page and the size of each."""

    pages = Bundle("pages")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(SIZES, SLABS * SLAB, slab_bytes=SLAB, poison=True)
        self.pool.buffer.fill_(0)
        self.sizes: dict[int, int] = {}
        self.users: Counter[int] = Counter()
        self.cached: Counter[int] = Counter()
        self.marks: dict[int, int] = {}

    @property
    def live(self) -> Counter[int]:
        return self.users + self.cached

    def fits(self, demand: Sequence[int], pages: Iterable[int]) -> bool:
        """Whether pages of every size fit beside ``pages``: empty slabs serve every size."""
        slabs: dict[int, set[int]] = {}
        for page in pages:
            slabs.setdefault(page * 64 // SLAB, set()).add(page)
        empty = SLABS - len(slabs)
        for size, count in zip(SIZES, demand, strict=True):
            per = SLAB // size
            own = [p for p in slabs.values() if {self.sizes[x] for x in p} == {size}]
            count -= sum(per - len(p) for p in own)
            empty -= max(0, -(-count // per))
        return empty >= 0

    @rule(target=pages, size=st.sampled_from(SIZES), count=st.integers(0, 80))
    def alloc(self, size: int, count: int) -> Any:
        before = self.pool.stats()
        demand = [count if s == size else 0 for s in SIZES]
        fits = self.pool.can_alloc(demand)
        assert fits == self.fits(demand, self.live)
        if not fits:
            with pytest.raises(CapacityError, match="KV pool is full"):
                self.pool.alloc(size, count)
            assert self.pool.stats() == before, "a refused request changes nothing"
            return multiple()
        got = self.pool.alloc(size, count)
        assert got.dtype == np.int32
        assert len(got) == count == len(set(got.tolist()))
        slabs = {page * 64 // SLAB for page in self.live if self.sizes[page] == size}
        new = [page * 64 // SLAB not in slabs for page in got.tolist()]
        assert new == sorted(new), "slabs in use fill up first"
        for page in got.tolist():
            assert page not in self.live
            self.sizes[page], self.users[page] = size, 1
            self.write(page)
        return multiple(*got.tolist())

    @rule(demand=st.tuples(*[st.integers(0, 40)] * len(SIZES)), data=st.data())
    def alloc_every_size(self, demand: tuple[int, ...], data: Any) -> None:
        """can_alloc says yes exactly when all of it can be had, in whatever order."""
        fits, before = self.pool.can_alloc(demand), self.pool.stats()
        assert fits == self.fits(demand, self.live)
        got = []
        for index in data.draw(st.permutations(range(len(SIZES)))):
            try:
                got.append(self.pool.alloc(SIZES[index], demand[index]))
            except CapacityError:
                assert not fits
                break
        else:
            assert fits
        for pages in got:
            assert not set(pages.tolist()) & set(self.live)
            self.pool.release(pages)
        assert self.pool.stats() == before

    @rule(demand=st.tuples(*[st.integers(0, 40)] * len(SIZES)))
    def what_eviction_would_free(self, demand: tuple[int, ...]) -> None:
        assert self.pool.can_alloc(demand, evict=True) == self.fits(demand, +self.users)

    def write(self, page: int) -> None:
        self.marks[page] = len(self.marks) % 200 + 1
        self.pool.buffer[page * 64 : page * 64 + self.sizes[page]] = self.marks[page]

    def counter(self, cached: bool) -> Counter[int]:
        return self.cached if cached else self.users

    @rule(some=st.lists(pages, max_size=6), cached=st.booleans(), times=st.sampled_from((1, 1, 40)))
    def retain(self, some: list[int], cached: bool, times: int) -> None:
        some = some * times
        if all(self.live[p] > 0 for p in some):
            self.pool.retain(ids(*some), cached=cached)
            self.counter(cached).update(some)
        else:
            self.refused(self.pool.retain, some, cached)

    @rule(some=st.lists(pages, max_size=6), cached=st.booleans(), times=st.sampled_from((1, 1, 40)))
    def release(self, some: list[int], cached: bool, times: int) -> None:
        some = some * times
        if all(self.counter(cached)[p] >= n for p, n in Counter(some).items()):
            self.pool.release(ids(*some), cached=cached)
            self.forget(some, cached)
        else:
            self.refused(self.pool.release, some, cached)

    @rule(page=consumes(pages))
    def release_last(self, page: int) -> None:
        for cached in (False, True):
            if count := self.counter(cached)[page]:
                self.pool.release(ids(*[page] * count), cached=cached)
                self.forget([page] * count, cached)

    @rule(cached=st.booleans())
    def release_everything(self, cached: bool) -> None:
        gone = list(self.counter(cached).elements())
        self.pool.release(ids(*gone), cached=cached)
        self.forget(gone, cached)

    def refused(self, work: Any, some: list[int], cached: bool) -> None:
        before = self.pool.stats()
        with pytest.raises(ValueError, match="page was"):
            work(ids(*some), cached=cached)
        assert self.pool.stats() == before

    def forget(self, some: list[int], cached: bool) -> None:
        mine = self.counter(cached)
        mine.subtract(some)
        for page in set(some):
            if not mine[page]:
                del mine[page]
            if page not in self.live:
                size = self.sizes[page]
                freed = self.pool.buffer[page * 64 : page * 64 + size]
                assert bool((freed == 255).all()), "freed pages are poisoned"

    @invariant()
    def bytes_add_up(self) -> None:
        stats = self.pool.stats()
        assert stats.used == sum(self.sizes[page] for page in self.users)
        assert stats.cached == sum(self.sizes[p] for p in self.cached if p not in self.users)
        slabs = {page * 64 // SLAB: SLAB % self.sizes[page] for page in self.live}
        assert stats.stranded == sum(slabs.values())
        assert stats.used + stats.cached + stats.free + stats.stranded == stats.total
        assert stats.total == self.pool.nbytes == SLABS * SLAB
        assert min(stats.used, stats.cached, stats.free, stats.stranded) >= 0

    @invariant()
    def live_pages_keep_their_place_and_content(self) -> None:
        end = 0
        for page in sorted(self.live):
            assert page * 64 >= end, "live pages overlap"
            end = page * 64 + self.sizes[page]
            assert end <= SLABS * SLAB
            assert page * 64 // SLAB == (end - 1) // SLAB, "a page lies in one slab"
            content = self.pool.buffer[page * 64 : end]
            assert bool((content == self.marks[page]).all()), "a live page was overwritten"

    @invariant()
    def counts_are_right(self) -> None:
        live = sorted(self.live)
        assert self.pool.references(ids(*live)).tolist() == [self.live[p] for p in live]
        assert [self.pool.shared(p) for p in live] == [self.live[p] > 1 for p in live]


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


def test_cached_pages_are_counted_apart() -> None:
    pool = PagePool((64, 640), 6400, slab_bytes=640)
    pages = pool.alloc(64, 100)
    with pytest.raises(ValueError, match="released more often"):
        pool.release(pages[:1], cached=True)
    pool.retain(pages, cached=True)
    assert pool.stats().used == 6400, "a page that a request uses is used, cached or not"
    pool.release(pages[1:])
    stats = pool.stats()
    assert (stats.used, stats.cached, stats.free) == (64, 6336, 0)
    assert not pool.can_alloc((1, 0))
    assert pool.can_alloc((9, 9), evict=True)
    assert not pool.can_alloc((10, 9), evict=True)
    assert not pool.can_alloc((0, 10), evict=True)
    with pytest.raises(ValueError, match="released more often"):
        pool.release(pages[1:2])
    pool.retain(pages[1:2])
    assert pool.stats().used == 128, "a hit makes it used again"


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="the system cannot take it back")
def test_free_slabs_go_back_to_the_system() -> None:
    size = 1 << 20
    pool = PagePool((size,), 64 * size)
    start = resident()
    pages = pool.alloc(size, 48)
    pool.buffer[: 48 * size] = 7
    full = resident()
    assert full - start > 40 * size
    pool.release(pages[:40])
    assert resident() > full - 4 * size, "freed pages wait for their next user"
    assert pool.give_back() == 40 * size
    assert resident() < full - 36 * size
    assert pool.give_back() == 0, "once"
    assert bool((pool.buffer[40 * size : 48 * size] == 7).all()), "live pages stay"
    again = pool.alloc(size, 2)
    assert again.tolist() == pages[:2].tolist()
    pool.release(again)
    assert pool.give_back() == 2 * size


def test_a_poisoned_pool_keeps_its_patterns() -> None:
    pool = PagePool((4096,), 8 * 4096, poison=True)
    page = pool.alloc(4096, 1)
    pool.release(page)
    assert pool.give_back() == 0
    assert bool((pool.buffer[:4096] == 255).all())


def test_parts_of_memory_pages_stay() -> None:
    """Slabs smaller than the system's pages: only what is wholly free goes back."""
    pool = PagePool((64,), 64 * 1024, slab_bytes=640)
    pages = pool.alloc(64, 1000)
    pool.buffer.fill_(3)
    pool.release(pages[10:990])
    assert pool.give_back() == (990 * 64 // mmap.PAGESIZE - 1) * mmap.PAGESIZE
    kept = np.concatenate((pages[:10], pages[990:])).astype(np.int64)[:, None] + np.arange(1)
    assert bool((pool.buffer.view(-1, 64)[torch.from_numpy(kept.reshape(-1))] == 3).all())


def test_few_and_many_pages_are_counted_alike() -> None:
    """Pages counted one by one and as arrays: the same pool in the end."""
    one, many = (PagePool((64, 192, 448), 64 * 1920, slab_bytes=1920) for _ in range(2))
    chance = np.random.default_rng(0)
    for _ in range(30):
        size = int(chance.choice(one.page_bytes))
        some = many.alloc(size, 200)
        assert sorted(np.concatenate([one.alloc(size, 1) for _ in range(200)])) == sorted(some)
        if chance.random() < 0.5:
            many.retain(some, cached=True)
            for page in some:
                one.retain(ids(page), cached=True)
        gone = chance.permutation(some)[: chance.integers(100, 200)]
        many.release(gone)
        for page in gone:
            one.release(ids(page))
        assert one.stats() == many.stats()
        left = np.setdiff1d(some, gone)
        many.release(left)
        one.release(left[: left.size // 2])
        one.release(left[left.size // 2 :])
        assert one.stats() == many.stats()
        if many.stats().cached:
            cached = some
            many.release(cached, cached=True)
            for page in cached:
                one.release(ids(page), cached=True)
        assert one.stats() == many.stats()


def test_the_pool_touches_no_memory_before_it_is_used() -> None:
    """A pool far larger than what is used costs nothing yet."""
    pool = PagePool((64 * 1024,), 2**33)
    page = int(pool.alloc(64 * 1024, 1)[0])
    pool.buffer[page * 64 : page * 64 + 10] = 1
    assert pool.nbytes >= 2**33
    assert torch.equal(pool.buffer[page * 64 : page * 64 + 3], torch.ones(3, dtype=torch.uint8))
