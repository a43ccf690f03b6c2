"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from kvik.cache import KVCache, PagePool, Sequence, choose_slab, restore, save, saved_write
from kvik.errors import KvikError
from kvik.models import Model
from kvik.plan import pool_capacity
from kvik.recipe import Recipe
from kvik.testing import models

ID = bytes(32)


@pytest.fixture
def model() -> Model:
    return models.plain()


@pytest.fixture
def cache(model: Model) -> KVCache:
    plan = Recipe.parse("int8+page:4").resolve(model.spec)
    slab = choose_slab(plan.page_bytes)
    return KVCache(plan, PagePool(plan.page_bytes, pool_capacity(plan, 100, slab, 3)))


@pytest.fixture
def sequence(model: Model, cache: KVCache) -> Sequence:
    found = cache.create()
    cache.plan([found], [40])
    model.forward(torch.arange(40), cache.positions, cache)
    cache.commit()
    return found


def put(path: Path | str, cache: KVCache, sequence: Sequence) -> None:
    save(path, cache, sequence, ids=range(40), identity=ID)


def test_a_file_comes_back(tmp_path: Path, cache: KVCache, sequence: Sequence) -> None:
    path = tmp_path / "chat.kv"
    put(path, cache, sequence)
    back = restore(path, cache, identity=ID)
    assert back.ids == tuple(range(40))
    assert cache.nbytes(back.sequence) == cache.nbytes(sequence)
    assert os.listdir(tmp_path) == ["chat.kv"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    data = path.read_bytes()
    assert str(tmp_path).encode() not in data
    assert b"chat.kv" not in data


def test_a_link_stays_a_link(tmp_path: Path, cache: KVCache, sequence: Sequence) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.kv").symlink_to(tmp_path / "real" / "chat.kv")
    put(tmp_path / "link.kv", cache, sequence)
    assert (tmp_path / "link.kv").is_symlink()
    assert os.listdir(tmp_path / "real") == ["chat.kv"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left")])
@pytest.mark.parametrize("where", ["first page", "last page", "fsync", "replace"])
def test_a_save_that_fails_leaves_the_old_file(
    tmp_path: Path,
    cache: KVCache,
    sequence: Sequence,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    fault: Any,
) -> None:
    path = tmp_path / "chat.kv"
    path.write_bytes(b"the old one")
    monkeypatch.setattr(saved_write, "SLICE", 1)  # a slice per page

    def fail(*args: Any, **kwargs: Any) -> None:
        raise fault

    if where.endswith("page"):
        real, calls = saved_write.rows_of, []

        def rows_of(pages: Any, nbytes: int) -> Any:
            calls.append(pages)
            if len(calls) == (1 if where == "first page" else 10):
                fail()
            return real(pages, nbytes)

        monkeypatch.setattr(saved_write, "rows_of", rows_of)
    else:
        monkeypatch.setattr(os, where, fail)
    before = cache.pool.stats()
    expected = KeyboardInterrupt if fault is KeyboardInterrupt else KvikError
    with pytest.raises(
        expected, match=None if fault is KeyboardInterrupt else "No space left.*free"
    ):
        put(path, cache, sequence)
    monkeypatch.undo()
    assert path.read_bytes() == b"the old one"
    assert os.listdir(tmp_path) == ["chat.kv"]
    assert cache.pool.stats() == before
    put(path, cache, sequence)
    assert restore(path, cache, identity=ID).sequence.length == 40


def test_places_that_cannot_be_used(tmp_path: Path, cache: KVCache, sequence: Sequence) -> None:
    before = cache.pool.stats()
    for path in (tmp_path, tmp_path / "none" / "chat.kv"):
        with pytest.raises(KvikError, match="cannot be written"):
            put(path, cache, sequence)
    (tmp_path / "empty.kv").touch()
    os.mkfifo(tmp_path / "pipe.kv")
    for name, words in (
        ("none.kv", "no such file"),
        (".", "no such file"),
        ("pipe.kv", "no such file"),
        ("empty.kv", "no saved kvik sequence"),
    ):
        with pytest.raises(KvikError, match=words):
            restore(tmp_path / name, cache, identity=ID)
    assert sorted(os.listdir(tmp_path)) == ["empty.kv", "pipe.kv"]
    assert cache.pool.stats() == before


def test_pages_pass_through_memory_in_slices(
    tmp_path: Path, cache: KVCache, sequence: Sequence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any size of slice gives the same file and the same cache."""
    files = []
    for size in (1, 3000, 1 << 20):
        monkeypatch.setattr(saved_write, "SLICE", size)
        path = tmp_path / f"{size}.kv"
        put(path, cache, sequence)
        files.append(path.read_bytes())
        back = restore(path, cache, identity=ID).sequence
        again = tmp_path / "again.kv"
        put(again, cache, back)
        files.append(again.read_bytes())
        cache.free(back)
    assert len(set(files)) == 1
