"""Sequences that leave for host memory and come back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests import tracers
from tests.cache.common import STACKS, build, run

from kvik.cache import KVCache, Sequence
from kvik.cache.pageio import read_pages
from kvik.cache.swap import swap_in, swap_out
from kvik.cache.table import RaggedTable, State
from kvik.errors import CapacityError

assert tracers.Heavy.names  # importing them registered them


def contents(cache: KVCache, state: State) -> list[torch.Tensor]:
    """The bytes of every table's pages, in order."""
    sizes = cache.pool.page_bytes
    return [read_pages(cache.pool, sizes[i], t.pages) for i, t in cache.tables(state)]


def sharing(states: list[State]) -> list[int]:
    """Which places of all tables name the same page: each page by its first place."""
    pages = np.concatenate([s.pages() for s in states])
    _, first, where = np.unique(pages, return_index=True, return_inverse=True)
    return first[where].tolist()  # type: ignore[no-any-return]


def family(cache: KVCache) -> list[Sequence]:
    """A sequence, two forks that went on by themselves, and a stranger."""
    first, other = cache.create(), cache.create()
    run(cache, [first, other], [41, 19])
    second, third = cache.fork(first), cache.fork(first)
    run(cache, [second, third], [3, 14], seed=1)
    return [first, second, third, other]


@pytest.mark.parametrize(("recipe", "model"), STACKS)
def test_they_come_back_bit_by_bit_with_the_same_sharing(recipe: str, model: str) -> None:
    _, cache = build(recipe, model)
    sequences = family(cache)
    before = [s.state for s in sequences]
    used, want, shared = cache.pool.stats().used, [], sharing(before)
    for state in before:
        want.append(contents(cache, state))
    lengths = [s.length for s in sequences]
    swapped = swap_out(cache, sequences)
    assert cache.pool.stats().used == 0
    assert [s.length for s in sequences] == [0] * 4, "they are free"
    sizes = cache.pool.page_bytes
    assert sum(n * c for n, c in zip(sizes, swapped.demand, strict=True)) == used, "each page once"
    assert swapped.nbytes == used + sum(s.table_bytes for s in before)
    stranger = cache.create()
    run(cache, [stranger], [30], seed=2)  # so that the pages come back elsewhere
    again = swap_in(cache, swapped)
    assert [s.length for s in again] == lengths
    assert sharing([s.state for s in again]) == shared
    assert cache.pool.stats().used == used + cache.nbytes(stranger) - stranger.state.table_bytes
    for sequence, old, pages in zip(again, before, want, strict=True):
        assert all(map(torch.equal, contents(cache, sequence.state), pages))
        for a, b in zip(sequence.state.layer_states, old.layer_states, strict=True):
            assert (a is None and b is None) or torch.equal(a, b)
        for m, n in zip(sequence.state.main, old.main, strict=True):
            if isinstance(m, RaggedTable):
                assert isinstance(n, RaggedTable)
                assert (m.positions == n.positions).all()
                assert (m.mass is None and n.mass is None) or torch.equal(m.mass, n.mass)
    for sequence in [*again, stranger]:
        cache.free(sequence)
    assert cache.pool.stats().used == 0, "every reference was counted"


@pytest.mark.parametrize(("recipe", "model"), STACKS)
def test_they_go_on_as_if_they_had_never_left(recipe: str, model: str) -> None:
    _, left = build(recipe, model)
    _, stayed = build(recipe, model)
    away, here = family(left), family(stayed)
    for sequence in (left.create(), stayed.create()):
        assert sequence.length == 0
    swapped = swap_out(left, away[1:3])
    run(left, [away[0]], [6], seed=3)
    run(stayed, [here[0]], [6], seed=3)
    back = swap_in(left, swapped)
    got = run(left, [away[0], *back, away[3]], [1, 2, 12, 1], seed=4)
    want = run(stayed, here, [1, 2, 12, 1], seed=4)
    assert torch.equal(got, want)


@pytest.mark.parametrize(("recipe", "model"), STACKS)
def test_no_room_changes_nothing(recipe: str, model: str) -> None:
    _, cache = build(recipe, model)
    sequences = family(cache)
    swapped = swap_out(cache, sequences)
    taken = []
    for nbytes in reversed(cache.pool.page_bytes):
        while cache.pool.can_alloc([int(n == nbytes) for n in cache.pool.page_bytes]):
            taken.append(cache.pool.alloc(nbytes, 1))
    before = cache.pool.stats()
    with pytest.raises(CapacityError, match="free others first"):
        swap_in(cache, swapped)
    assert cache.pool.stats() == before
    while not cache.pool.can_alloc(swapped.demand):
        with pytest.raises(CapacityError):
            swap_in(cache, swapped)
        cache.pool.release(taken.pop())
    again = swap_in(cache, swapped)
    assert [s.length for s in again] == [41, 44, 55, 19]


def test_twice_from_the_same_copy() -> None:
    _, cache = build("int8", "plain")
    sequence = cache.create()
    run(cache, [sequence], [70])
    swapped = swap_out(cache, [sequence])
    (a,), (b,) = swap_in(cache, swapped), swap_in(cache, swapped)
    assert torch.equal(run(cache, [a], [3], seed=1), run(cache, [b], [3], seed=1))
    assert not np.isin(a.state.pages(), b.state.pages()).any()


def test_pages_that_others_hold_stay_for_them() -> None:
    _, cache = build("int8", "plain")
    first = cache.create()
    run(cache, [first], [70])
    pages = first.state.pages()
    cache.pool.retain(pages[:2], cached=True)
    second = cache.fork(first)
    used = cache.pool.stats().used
    swapped = swap_out(cache, [first])
    assert cache.pool.stats().used == used
    swap_out(cache, [second])
    assert cache.pool.stats().used == 0
    assert cache.pool.references(pages).tolist() == [1, 1, 0]
    assert swap_in(cache, swapped)[0].length == 70


@pytest.mark.parametrize("name", ["alloc", "retain"])
def test_an_interrupt_leaks_and_loses_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, cache = build("perchannel:4,residual=7", "grouped")
    sequences = family(cache)
    states, used = [s.state for s in sequences], cache.pool.stats().used

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache.pool, "release", fail)
        with pytest.raises(KeyboardInterrupt):
            swap_out(cache, sequences)
    assert cache.pool.stats().used == used
    assert all(s.state is state for s, state in zip(sequences, states, strict=True))
    swapped = swap_out(cache, sequences)
    with monkeypatch.context() as patch:
        patch.setattr(cache.pool, name, fail)
        with pytest.raises(KeyboardInterrupt):
            swap_in(cache, swapped)
    assert cache.pool.stats().used == 0
    assert len(swap_in(cache, swapped)) == 4


def test_nothing_is_swapped_as_nothing() -> None:
    _, cache = build("int8", "plain")
    swapped = swap_out(cache, [])
    assert (swapped.nbytes, set(swapped.demand)) == (0, {0})
    assert swap_in(cache, swapped) == []
    empty = swap_in(cache, swap_out(cache, [cache.create()]))
    assert [s.length for s in empty] == [0]
