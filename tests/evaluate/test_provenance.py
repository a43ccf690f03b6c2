"""Where something was measured is told, where files lie is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvik.evaluate.provenance import command, shown_name


def test_a_command_tells_no_whole_path(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["/home/me/m.gguf", "--kv", "int8", "--out=/tmp/o/new", "--text", "/data/b k.txt"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kvik", "compare", *words, "--baseline", "a/b.json"])
    assert command() == (
        "kvik compare m.gguf --kv int8 --out=new --text 'b k.txt' --baseline a/b.json"
    )


def test_a_benchmark_s_command_tells_none_either(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["row", "--model", "llama-1b=/home/me/a=b/m.gguf", "/data/x=y.txt", "n=3"]
    monkeypatch.setattr(sys, "argv", ["/home/me/bench/run.py", *words])
    assert command("python", "bench/run.py") == (
        "python bench/run.py row --model llama-1b=m.gguf x=y.txt n=3"
    )


def test_a_model_is_known_by_its_last_part(tmp_path: Path) -> None:
    assert shown_name(str(tmp_path)) == tmp_path.name
    assert shown_name("smollm2-135m") == "smollm2-135m"
