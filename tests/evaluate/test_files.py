"""Inputs that cannot be used end in one clear error; outputs are complete or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvik.errors import KvikError
from kvik.evaluate import files
from kvik.evaluate.text import library_text, read_text, windows


def test_library_text_is_long_enough_for_long_contexts() -> None:
    assert len(library_text()) > 300_000


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe caf\xe9", "not UTF-8"), (b"", "is empty"), (b" \n\t ", "is empty")],
)
def test_unusable_text_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(KvikError, match=message):
        read_text(path)


def test_missing_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KvikError, match="No such file"):
        read_text(tmp_path / "none.txt")
    with pytest.raises(KvikError, match="directory"):
        read_text(tmp_path)


def test_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "bom.txt"
    path.write_bytes(b"\xef\xbb\xbfhello")
    assert read_text(path) == "hello"


def test_windows_spread_over_the_text_and_need_enough_of_it() -> None:
    assert windows(range(10), 4, 3, what="it") == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7]]
    with pytest.raises(KvikError, match="it has 10 tokens, 11 are needed"):
        windows(range(10), 11, 1, what="it")


def test_folder_check_leaves_nothing(tmp_path: Path) -> None:
    files.check_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KvikError, match="not a folder"):
        files.check_writable(tmp_path / "file" / "out")


def test_write_leaves_the_old_file_when_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "x.json"
    files.write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        files.write_atomic(path, "new \udcff")
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]
