"""Any order of operations on an engine in a tiny pool: right answers, pages counted."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests import tracers
from tests.engine.driver import Driver

from kvik.engine.engine import Engine
from kvik.engine.scheduler import Order
from kvik.engine.underway import Underway
from kvik.models import Model
from kvik.recipe.layout import ALIGN
from kvik.testing import models

assert tracers.PerChannel.examples  # importing them registered them
SOAK = 100_000
# Recipe, model, tokens that the pool holds of two sequences, bytes of host memory, step, order.
CASES: dict[str, tuple[str, Model, int, int, int, Order]] = {
    "fp16": ("fp16+page:8", models.single(), 70, 0, 24, "arrival"),
    "swap": ("int8+page:4", models.single(), 70, 6_000, 24, "prefix"),
    "window": ("int8/int4+sinks:2+window:18+page:4", models.single(), 60, 3_000, 7, "arrival"),
    "late": ("perchannel:4,residual=7,raw+page:4", models.single(), 70, 15_000, 24, "prefix"),
    "evicting": ("heavy:20+page:4", models.single(), 70, 0, 16, "arrival"),
    "sizes": ("fp16@0+int4+page:4", models.plain(), 70, 4_000, 64, "arrival"),
    "state": ("fp16+page:8", models.stateful(), 70, 20_000, 24, "arrival"),
    "none": ("none", models.single(), 70, 0, 24, "arrival"),
}


def driver(name: str) -> Driver:
    """A pool that holds two or three requests."""
    recipe, model, tokens, swap, step, order = CASES[name]
    probe = Engine(model, recipe, memory=8 << 20)
    slab = probe.cache.pool.slab_bytes
    sizes = zip(probe.memory.peak(tokens), probe.cache.pool.page_bytes, strict=True)
    memory = sum(-(-2 * n * size // slab) for n, size in sizes) * slab
    return Driver(model, recipe, memory or slab, swap=swap, tokens=step, order=order)


class Machine(RuleBasedStateMachine):
    """Adds, steps, forks (samples), aborts, preempts (recomputing, swapping), evicts."""

    name = "fp16"

    def __init__(self) -> None:
        super().__init__()
        self.driver = driver(self.name)

    @rule(
        family=st.integers(0, 2),
        length=st.integers(1, 50),
        new=st.integers(1, 12),
        width=st.integers(1, 3),
        seed=st.integers(0, 2),
        priority=st.integers(0, 1),
        kind=st.integers(0, 4),
    )
    def add(self, **options: int) -> None:
        self.driver.add(**options)

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.driver.step()
            self.driver.check()

    @rule(number=st.integers(0, 99))
    def abort(self, number: int) -> None:
        self.driver.abort(number)

    @rule(number=st.integers(0, 99))
    def preempt(self, number: int) -> None:
        self.driver.preempt(number)

    @rule(pages=st.integers(1, 9))
    def evict(self, pages: int) -> None:
        self.driver.evict(pages)

    @invariant()
    def counted(self) -> None:
        self.driver.check()

    def teardown(self) -> None:
        self.driver.finish()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_any_order_of_operations(name: str) -> None:
    case = type(f"Machine{name}", (Machine,), {"name": name})
    case.TestCase.settings = settings(max_examples=9, stateful_step_count=25, deadline=None)
    case.TestCase().runTest()


def wander(driver: Driver, operations: int, seed: int) -> None:
    """A random walk over the same operations."""
    chance = random.Random(seed)
    for _ in range(operations):
        dice = chance.random()
        if dice < 0.62:
            driver.step()
        elif dice < 0.82 and len(driver.open) < 24:
            length, new = chance.randrange(1, 51), chance.randrange(1, 13)
            width, kind = chance.choice((1, 1, 1, 2, 3)), chance.choice((0, 0, 1, 2, 3, 4))
            family, seed, priority = (chance.randrange(k) for k in (4, 3, 2))
            driver.add(family, length, new, width, seed, priority, kind)
        elif dice < 0.88:
            driver.abort(chance.randrange(99))
        elif dice < 0.95:
            driver.preempt(chance.randrange(99))
        else:
            driver.evict(chance.randrange(1, 9))
        driver.check()
    driver.finish()


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_a_hundred_thousand_operations(name: str) -> None:
    one = driver(name)
    wander(one, SOAK // len(CASES) + 1, seed=1)
    assert one.finished > 1000


@pytest.mark.slow
def test_a_walk_preempts_swaps_forks_and_hits() -> None:
    """The walk really goes where it should: none of the counts is zero."""
    one = driver("swap")
    wander(one, 500, seed=2)
    stats = one.engine.stats()
    assert min(stats.counts.swapped, stats.counts.recomputed, stats.counts.reused) > 0
    assert one.engine.prefixes is not None
    assert one.engine.prefixes.stats().evictions > 0
    assert one.finished > 40


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["leak", "double", "early", "wrong"])
def test_planted_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: a page kept, a page freed twice, a prompt's pages freed too early, and
    one with plausible numbers that are not its own.
    """
    one = driver("fp16")
    memory = one.engine.memory
    release = type(memory).release

    def leak(self, branch) -> None:
        if branch.known % 5 == 0:
            branch.sequence = None
        else:
            release(self, branch)

    def double(self, branch) -> None:
        if branch.sequence is not None and branch.known % 5 == 0 and branch.computed:
            self.pool.release(branch.sequence.state.pages()[:1])
        release(self, branch)

    def early(self: Underway, job) -> None:
        for branch in job.live[:1]:
            if branch.sequence is not None and branch.computed > 20:
                pages = branch.sequence.state.pages()
                memory.pool.release(pages[:1])
                memory.pool.alloc(memory.pool.page_bytes[0], 1)
        settle(self, job)

    def wrong(branch, hit) -> None:
        start(branch, hit)
        for page in branch.sequence.state.pages()[:1].tolist():
            rows = memory.pool.buffer[page * ALIGN :][: memory.pool.page_bytes[0]]
            rows.view(torch.float16).mul_(-1)

    settle, start = Underway.settle, memory.start
    if fault == "wrong":
        monkeypatch.setattr(memory, "start", wrong)
    elif fault == "early":
        monkeypatch.setattr(Underway, "settle", early)
    else:
        monkeypatch.setattr(type(memory), "release", leak if fault == "leak" else double)
    with pytest.raises((AssertionError, ValueError)):
        wander(one, 400, seed=3)
