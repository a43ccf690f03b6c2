"""Where packed weights lie: side by side, alone in their bytes, for as long as they are used."""

from __future__ import annotations

import gc
import mmap

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvik.ops import shelf as shelves
from kvik.ops.shelf import LARGE_PAGE, LINE, Shelf

SIZES = st.lists(st.integers(0, 3 * LARGE_PAGE), max_size=8)


@given(SIZES)
def test_tensors_share_no_byte_and_begin_on_a_line(sizes: list[int]) -> None:
    shelf = Shelf()
    taken = [shelf.take(size) for size in sizes]
    for i, tensor in enumerate(taken):
        assert tensor.dtype == torch.uint8
        assert tensor.shape == (sizes[i],)
        assert tensor.data_ptr() % LINE == 0 or not len(tensor)
        tensor.fill_(i + 1)
    assert all(bool((tensor == i + 1).all()) for i, tensor in enumerate(taken))


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no large pages on this system")
def test_what_is_taken_lies_side_by_side_until_a_chunk_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shelves, "CHUNK", LARGE_PAGE)
    shelf = Shelf()
    first, second = shelf.take(100), shelf.take(LARGE_PAGE - 128)
    assert first.data_ptr() % LARGE_PAGE == 0
    assert second.data_ptr() - first.data_ptr() == 128
    assert not 0 <= shelf.take(1).data_ptr() - first.data_ptr() < LARGE_PAGE
    assert shelf.take(2 * LARGE_PAGE + 1).data_ptr() % LARGE_PAGE == 0


def test_a_tensor_outlives_its_shelf() -> None:
    shelf = Shelf()
    kept = shelf.take(1000)
    kept.fill_(7)
    del shelf
    gc.collect()
    assert bool((kept == 7).all())


def test_without_room_for_a_chunk_a_tensor_has_memory_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*args: object, **kwargs: object) -> mmap.mmap:
        raise OSError("no memory")

    monkeypatch.setattr(mmap, "mmap", refused)
    assert len(Shelf().take(10)) == 10
