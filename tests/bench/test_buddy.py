"""The buddy allocator does what a model of single slots says, slot by slot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvik.bench.buddy import Buddy, power_of_two


class Slots:
    """The same by looking at every slot: free blocks are the largest free aligned ranges."""

    def __init__(self, size: int) -> None:
        self.taken = [False] * size
        self.trees: list[tuple[int, int]] = []
        start = 0
        for digit in reversed(range(size.bit_length())):
            if size & 1 << digit:
                self.trees.append((start, 1 << digit))
                start += 1 << digit

    def free_blocks(self) -> list[tuple[int, int]]:
        """(size, address), found from the top of each tree down."""
        found, todo = [], list(self.trees)
        while todo:
            start, size = todo.pop()
            if not any(self.taken[start : start + size]):
                found.append((size, start))
            elif size > 1:
                todo += [(start, size // 2), (start + size // 2, size // 2)]
        return sorted(found)

    def alloc(self, slots: int) -> int | None:
        for size, start in self.free_blocks():
            if size >= slots:
                self._mark(start, power_of_two(slots), True)
                return start
        return None

    def release(self, start: int, size: int) -> None:
        self._mark(start, size, False)

    def _mark(self, start: int, size: int, taken: bool) -> None:
        assert self.taken[start : start + size] == [not taken] * size
        self.taken[start : start + size] = [taken] * size


@settings(max_examples=300)
@given(
    st.integers(1, 100),
    st.lists(st.one_of(st.integers(1, 110), st.integers(-20, -1)), max_size=60),
)
def test_same_as_the_model(size: int, operations: list[int]) -> None:
    """Positive: allocate so many slots; negative: release one of the blocks handed out."""
    buddy, model, held = Buddy(size), Slots(size), list[tuple[int, int]]()
    for operation in operations:
        if operation > 0:
            address = buddy.alloc(operation)
            assert address == model.alloc(operation)
            if address is not None:
                assert buddy.block(address) == power_of_two(operation)
                assert address % buddy.block(address) == 0
                held.append((address, buddy.block(address)))
        elif held:
            block = held.pop(operation % len(held))
            buddy.release(block[0])
            model.release(*block)
        free = model.free_blocks()
        assert buddy.free == model.taken.count(False)
        assert buddy.largest == max((n for n, _ in free), default=0)
    for address, _ in held:
        buddy.release(address)
    assert buddy.free == size
    assert buddy.largest == 1 << size.bit_length() - 1


def test_free_slots_can_be_too_scattered() -> None:
    buddy = Buddy(8)
    blocks = [buddy.alloc(2) for _ in range(4)]
    assert blocks == [0, 2, 4, 6]
    for address in (0, 4):
        buddy.release(address)
    assert (buddy.free, buddy.largest, buddy.alloc(3)) == (4, 2, None)
    buddy.release(2)
    assert buddy.alloc(3) == 0


def test_a_block_is_released_once() -> None:
    buddy = Buddy(4)
    assert buddy.alloc(4) == 0
    buddy.release(0)
    with pytest.raises(KeyError):
        buddy.release(0)


@pytest.mark.parametrize(("size", "power"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1025, 2048)])
def test_power_of_two(size: int, power: int) -> None:
    assert power_of_two(size) == power
