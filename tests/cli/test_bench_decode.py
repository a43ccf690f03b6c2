"""``kvik bench decode`` and ``kvik bench prefill`` as a person calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvik.bench import decode

from .conftest import Call


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bandwidth of a small buffer: its value does not matter here."""
    real = decode.read_bandwidth
    monkeypatch.setattr(decode, "read_bandwidth", lambda n, **_: real(n, nbytes=1 << 20, repeats=2))


def sizes(*more: str) -> tuple[str, ...]:
    return ("--context", "24", "--context", "40", "--rounds", "1", *more)


@pytest.mark.parametrize("verb", ["decode", "prefill"])
def test_table_notes_and_files(kvik: Call, tiny_model: Path, tmp_path: Path, verb: str) -> None:
    out = tmp_path / "a"
    more = ("--steps", "2") if verb == "decode" else ()
    args = sizes("--batch", "2", "--out", str(out), *more)
    done = kvik("bench", verb, str(tiny_model), *args)
    assert done.status == 0, done.err
    for text in ("fp16", "int8", "int4", "ms/token", "plain reads reach", "* "):
        assert text in done.out
    assert ("x floor" in done.out) == (verb == "decode")
    assert sorted(path.name for path in out.iterdir()) == [f"{verb}.jsonl", f"{verb}.svg"]
    lines = [json.loads(line) for line in (out / f"{verb}.jsonl").read_text().splitlines()]
    assert [(one["context"], one["recipe"]) for one in lines] == [
        (context, recipe) for context in (24, 40) for recipe in ("fp16", "int8", "int4")
    ]
    for one in lines:
        assert {"bench", "model", "read_gb_s", "bytes", "gb_s", "load_average", "env"} <= set(one)
        assert {"cpu", "threads", "commit", "command", "torch"} <= set(one["env"])


def test_json_alone_on_standard_output(kvik: Call, tiny_model: Path) -> None:
    args = ("--kv", "int8+page:8", "--batch", "1", "--batch", "3", "--steps", "2", "--json")
    done = kvik("bench", "decode", str(tiny_model), *sizes(*args))
    assert (done.status, done.err) == (0, "")
    result = json.loads(done.out)
    assert [run["batch"] for run in result["runs"]] == [1, 3, 1, 3]
    assert result["steps"] == 2
    assert result["env"]["command"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--kv", "int8+nonsense:3"), ["column 6", "nonsense"]),
        (("--kv", "none"), ["none caches no tokens"]),
        (("--context", "99999"), ["99,999 tokens", "beyond the 4,096", "--context"]),
        (("--context", "0"), ["--context", "0 is not in the range"]),
        (("--batch", "0"), ["--batch", "0 is not in the range"]),
        (("--rounds", "0"), ["--rounds"]),
        (("--out", ""), ["--out is empty"]),
        (("--context", "4000", "--batch", "1024", "--kv", "fp32"), ["needs", "smaller --batch"]),
    ],
)
@pytest.mark.parametrize("verb", ["decode", "prefill"])
def test_bad_input_exits_2_and_names_it(
    kvik: Call,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    args: tuple[str, ...],
    words: list[str],
) -> None:
    monkeypatch.setattr("kvik.bench.decode_cache.available_memory", lambda: 10**9)
    done = kvik("bench", verb, str(tiny_model), *args)
    assert (done.status, done.out) == (2, "")
    assert all(word in done.err for word in words), done.err


def test_usual_contexts_are_those_that_the_model_reads(kvik: Call, tiny_base_model: Path) -> None:
    args = ("--kv", "fp16", "--batch", "1", "--rounds", "1", "--json")
    done = kvik("bench", "prefill", str(tiny_base_model), *args)
    assert done.status == 0, done.err
    assert [run["context"] for run in json.loads(done.out)["runs"]] == [128]


def test_a_model_that_is_not_there_exits_2(kvik: Call) -> None:
    done = kvik("bench", "decode", "./nowhere.gguf")
    assert done.status == 2
    assert "nowhere.gguf" in done.err
