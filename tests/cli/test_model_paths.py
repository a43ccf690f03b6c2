"""What a path holds decides how it is read, not how it is spelled: weights and tokenizer alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.test_tokenizer import byte_level, write

from kvik.models.tokenizer import Tokenizer
from kvik.spec.load import locate


@pytest.mark.parametrize("name", ["folder/t.gguf", "folder/T.GGUF", "T.GGUF", "0a1b2c"])
def test_a_gguf_is_found_whatever_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    file = write(tmp_path / "t.gguf", **byte_level()).rename(tmp_path / name)
    path = file.parent if "/" in name else file
    assert locate(path) == file
    assert Tokenizer.from_path(path).decode(Tokenizer.from_gguf(file).encode("low")) == "low"


def test_config_json_by_its_own_name(tiny_model: Path) -> None:
    named, folder = Tokenizer.from_path(tiny_model / "config.json"), Tokenizer.from_path(tiny_model)
    assert named.encode("hello") == folder.encode("hello")
