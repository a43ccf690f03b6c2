"""What the prefix cache gives up, and when: leaves first, the least recently used first."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.prefix_runner import Runner, near, solo

from kvik.cache import Sequence, State
from kvik.cache.table import Table
from kvik.testing import models

Prefix = tuple[int, ...]
BLOCK = 4
recipe = f"int8+page:{BLOCK}"


def empty_sequence(runner: Runner, length: int) -> Sequence:
    """A sequence with pages for ``length`` tokens that nobody wrote."""
    sequence, count = runner.cache.create(), -(-length // BLOCK)
    pages = runner.pool.alloc(runner.pool.page_bytes[0], count)
    table = Table(np.arange(count, dtype=np.int32), pages)
    old = sequence.state
    sequence.state = State(length, (table,), old.tail, old.layer_states)
    return sequence


def stored(runner: Runner) -> set[Prefix]:
    return {tuple(runner.prefix.text_of(e).ids) for e in runner.prefix.entries()}


def room(runner: Runner) -> int:
    """Pages that can be had at once."""
    most = runner.pool.nbytes // runner.pool.page_bytes[0]
    return next(n for n in range(most, -1, -1) if runner.pool.can_alloc((n,)))


@dataclass
class Oracle:
    """Every stored prefix with its last use, the plainest way."""

    used: dict[Prefix, int] = field(default_factory=dict)
    clock: int = 0

    def use(self, ids: Prefix) -> None:
        """A use of a prefix is one of all its beginnings; its parts of blocks are not kept."""
        self.clock += 1
        for stop in [*range(BLOCK, len(ids) + 1, BLOCK), len(ids)]:
            known = ids[:stop]
            if stop % BLOCK and any(p[:stop] == known for p in self.used):
                longest = [p for p in self.used if p[:stop] == known]
                known = min(longest)
            self.used[known] = self.clock
        for part in [p for p in self.used if len(p) % BLOCK]:
            if any(p != part and p[: len(part)] == part for p in self.used):
                del self.used[part]

    def give_up(self) -> None:
        leaves = [p for p in self.used if not any(q != p and q[: len(p)] == p for q in self.used)]
        del self.used[min(leaves, key=lambda p: self.used[p])]


ids = st.lists(st.integers(0, 1), min_size=1, max_size=14).map(tuple)


@given(st.lists(st.tuples(st.sampled_from(["store", "use", "evict"]), ids), max_size=25))
def test_the_order_is_that_of_a_plain_list(steps: list[tuple[str, Prefix]]) -> None:
    runner, oracle = Runner(models.plain, recipe, sequences=8), Oracle()
    for what, tokens in steps:
        text = runner.prefix.text(tokens)
        if what == "store":
            sequence = empty_sequence(runner, len(tokens))
            runner.prefix.insert(text, sequence)
            runner.cache.free(sequence)
            oracle.use(tokens)
        elif what == "use":
            hit = runner.prefix.match(text, len(tokens))
            runner.cache.free(runner.prefix.take(hit))
            runner.prefix.note(hit)
            if hit.entry is not None:
                oracle.use(tuple(runner.prefix.text_of(hit.entry).ids))
        elif oracle.used:
            assert runner.prefix.evict((room(runner) + 1,))
            oracle.give_up()
        assert stored(runner) == set(oracle.used)
        runner.check_books()
    while oracle.used:
        assert runner.prefix.evict((room(runner) + 1,))
        oracle.give_up()
        assert stored(runner) == set(oracle.used)
    assert not runner.prefix.evict((room(runner) + 1,))


def store(runner: Runner, tokens: list[int]) -> Sequence:
    sequence = empty_sequence(runner, len(tokens))
    runner.prefix.insert(runner.prefix.text(tokens), sequence)
    return sequence


def test_nothing_is_given_up_in_vain() -> None:
    runner = Runner(models.plain, recipe)
    running = [store(runner, [i] * 16) for i in range(3)]
    runner.cache.free(running.pop())
    before, have = runner.prefix.stats(), room(runner)
    assert not runner.prefix.evict((have + 5,)), "only four pages are there to be had"
    assert runner.prefix.evict((have,))
    assert runner.prefix.stats() == before
    assert runner.prefix.evict((have + 4,))
    assert runner.prefix.stats().entries == 8
    assert runner.prefix.stats().evictions == 4
    runner.check_books(*running)
    runner.close(*running)


def test_leaves_that_free_nothing_stay() -> None:
    runner = Runner(models.plain, recipe)
    running = store(runner, [1] * 16)
    runner.cache.free(store(runner, [2] * 16))
    assert runner.prefix.evict((room(runner) + 2,)), "the older entries are in use"
    assert stored(runner) == {(1,) * n for n in (4, 8, 12, 16)} | {(2,) * n for n in (4, 8)}
    runner.close(running)


def test_leaves_in_use_go_when_the_pages_above_them_are_needed() -> None:
    runner = Runner(models.plain, recipe)
    runner.cache.free(store(runner, [1] * 8))
    running = store(runner, [1] * 16)  # lists its last two pages only
    assert runner.pool.stats().cached == 2 * runner.pool.page_bytes[0]
    assert runner.prefix.evict((room(runner) + 1,))
    assert stored(runner) == {(1,) * 4}
    runner.check_books(running)
    runner.close(running)


def test_a_use_counts_for_everything_above_it() -> None:
    runner = Runner(models.plain, recipe)
    runner.cache.free(store(runner, [1] * 8))
    running = store(runner, [2] * 4)
    hit = runner.prefix.match(runner.prefix.text([1] * 9), 8)
    runner.cache.free(runner.prefix.take(hit))
    runner.prefix.note(hit)
    assert runner.prefix.evict((room(runner) + 1,)), "the older entry is in use"
    assert stored(runner) == {(1,) * 4, (2,) * 4}
    runner.cache.free(running)
    assert runner.prefix.evict((room(runner) + 1,))
    assert stored(runner) == {(1,) * 4}, "used later, by way of its child"
    runner.close()


def test_eviction_leaves_running_sequences_alone() -> None:
    runner = Runner(models.plain, recipe, sequences=8)
    tokens = list(range(40))
    _, _, first = runner.run(tokens, [40])
    _, _, second = runner.run([*tokens[:21], 7, 8, 9], [24])
    runner.prefix.evict((room(runner) + 1,))
    while runner.prefix.evict((room(runner) + 1,)):
        pass
    runner.check_books(first, second)
    near(runner.feed(first, [5, 6]), solo(models.plain, recipe, (*tokens, 5, 6))[40:])
    want = solo(models.plain, recipe, (*tokens[:21], 7, 8, 9, 5, 6))[24:]
    near(runner.feed(second, [5, 6]), want)
    runner.close(first, second)


def test_a_hit_that_eviction_shortened_is_taken_for_what_is_left() -> None:
    runner = Runner(models.plain, recipe)
    tokens = list(range(40))
    runner.cache.free(runner.run(tokens, [40])[2])
    hit = runner.prefix.match(runner.prefix.text(tokens), 39)
    assert hit.length == 39
    runner.prefix.evict((room(runner) + 3,))
    sequence = runner.prefix.take(hit)
    assert sequence.length == 28
    near(runner.feed(sequence, tokens[28:]), solo(models.plain, recipe, tuple(tokens))[28:])
    hit = runner.prefix.match(runner.prefix.text(tokens), 39)
    runner.prefix.clear()
    assert runner.prefix.take(hit).length == 0
    runner.close(sequence)


@pytest.mark.parametrize("made", ["int8+page:4", "window:9+page:4", "heavy:9,every=16"])
def test_a_bound_in_bytes_holds_after_every_insert(made: str) -> None:
    free = Runner(models.plain, made)
    free.cache.free(free.run(list(range(40)), [16, 40])[2])
    bound = free.prefix.stats().bytes * 5 // 4
    runner = Runner(models.plain, made, max_bytes=bound)
    for start in range(6):
        tokens = list(range(start, start + 40))
        runner.cache.free(runner.run(tokens, [16, 40])[2])
        assert 0 < runner.prefix.stats().bytes <= bound
        hit = runner.prefix.match(runner.prefix.text([*tokens, 1]), 40)
        assert hit.length == 40, "the newest stays"
        runner.check_books()
    assert runner.prefix.stats().evictions > 0
    runner.close()


def test_tenants_and_unfinished_blocks_leave_nothing_behind() -> None:
    runner = Runner(models.plain, recipe)
    for i in range(300):
        text = runner.prefix.text([1] * 16, domain=str(i))
        sequence = empty_sequence(runner, 16)
        for length in (1, 2, 3, 16):
            old = sequence.state
            cut = Sequence(runner.cache.cut_state(old, length))
            runner.prefix.insert(text, cut)
        runner.cache.free(sequence)
        runner.prefix.evict((room(runner) + 4,))
    assert runner.prefix.stats().entries == 0
    assert not runner.prefix._tree.roots
    assert len(runner.prefix._leaves._heap) < 10


def test_giving_up_many_entries_takes_one_turn_each() -> None:
    """No entry comes up more than twice, however many there are and whatever was used when."""
    runner = Runner(models.plain, recipe, sequences=60)
    for i in range(100):
        runner.cache.free(store(runner, [i] * 24))
    for i in range(0, 100, 3):
        hit = runner.prefix.match(runner.prefix.text([i] * 25), 24)
        runner.cache.free(runner.prefix.take(hit))
        runner.prefix.note(hit)
    turns = 0
    push = runner.prefix._leaves.push

    def counting(entry: object) -> None:
        nonlocal turns
        turns += 1
        push(entry)  # type: ignore[arg-type]

    runner.prefix._leaves.push = counting  # type: ignore[method-assign]
    total = runner.pool.nbytes // runner.pool.page_bytes[0]
    assert runner.prefix.evict((total,))
    assert runner.prefix.stats().evictions == 600
    assert turns <= 2 * 600
