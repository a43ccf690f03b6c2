"""``kvik bench waste`` as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvik.bench.trace import Arrival, dump
from kvik.evaluate import files
from kvik.machine import parse_bytes

from .conftest import Call

SMALL = ("--memory", "512MiB", "--context", "256", "--requests", "6", "--rate", "50")
ALPACA = ("bench", "waste", "--trace", "alpaca", "--kv", "int8+page:16", *SMALL)


def test_bench_shows_its_benchmarks(kvik: Call) -> None:
    done = kvik("bench")
    assert done.status == 0
    assert "waste" in done.out


def test_table_and_files(kvik: Call, tmp_path: Path) -> None:
    done = kvik(*ALPACA, "--out", str(tmp_path / "a" / "b"))
    assert done.status == 0, done.err
    for text in ("opt-13b with int8+page:16", "Max", "Pow2", "Oracle", "kvik", "token states %"):
        assert text in done.out
    found = sorted((tmp_path / "a" / "b").iterdir())
    assert [path.name for path in found] == ["trace.jsonl", "waste.json", "waste.svg"]
    assert found[2].read_text().lstrip().startswith("<?xml")
    again = kvik("bench", "waste", "--trace", str(found[0]), *SMALL[:4], "--kv", "int8", "--json")
    assert again.status == 0, again.err
    first, second = json.loads(found[1].read_text()), json.loads(again.out)
    for key in ("requests", "seconds", "prompt_mean", "output_mean"):
        assert first["trace"][key] == second["trace"][key]


def test_json_says_what_was_measured(kvik: Call) -> None:
    done = kvik(*ALPACA, "--json")
    assert done.status == 0
    assert done.err == ""
    result = json.loads(done.out)
    assert set(result) == {
        "model", "recipe", "memory_bytes", "slot_bytes", "slots", "context", "page_tokens",
        "step_seconds", "trace", "systems", "env",
    }  # fmt: skip
    assert set(result["systems"][0]) == {
        "system", "shares", "idle", "byte_steps", "steps", "concurrent_mean", "concurrent_peak",
        "finished", "finished_in_time", "wait_seconds", "seconds", "preemptions",
        "recomputed_tokens",
    }  # fmt: skip
    assert result["memory_bytes"] == 512 << 20
    assert result["recipe"] == "int8+page:16"
    assert result["trace"]["name"] == "alpaca"
    assert json.loads(kvik(*ALPACA, "--seed", "0", "--json").out)["systems"] == result["systems"]
    assert json.loads(kvik(*ALPACA, "--seed", "1", "--json").out)["systems"] != result["systems"]


def test_a_real_description_is_a_model_too(kvik: Call, tiny_model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(dump([Arrival(0.0, 20, 9), Arrival(1.0, 30, 5)]))
    args = ("--model", str(tiny_model), "--memory", "4MiB", "--context", "64", "--json")
    done = kvik("bench", "waste", "--trace", str(trace), *args)
    assert done.status == 0, done.err
    assert json.loads(done.out)["trace"]["requests"] == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--memory", "12 bananas"), ["12 bananas", "GiB"]),
        (("--memory", "0"), ["no size"]),
        (("--memory", "1GiB"), ["1,310 tokens", "--memory 1.6 GiB", "--context"]),
        (("--memory", "999999TiB"), ["pool"]),
        (("--kv", "int8+nonsense:3"), ["column 6", "nonsense"]),
        (("--kv", "none"), ["caches no tokens"]),
        (("--kv", "int4:group=48"), ["int4:group=48"]),
        (("--model", "opt-14b"), ["'opt-14b'", "did you mean opt-13b?"]),
        (("--model", "missing.gguf"), ["missing.gguf"]),
        (("--trace", "missing.jsonl"), ["missing.jsonl"]),
        (("--trace", ""), ["--trace is empty"]),
        (("--trace", "TRACE", "--requests", "5"), ["--requests", "is a file"]),
        (("--trace", "TRACE", "--rate", "5"), ["--rate", "is a file"]),
        (("--trace", "TRACE", "--seed", "0"), ["--seed", "is a file"]),
        (("--trace", "TRACE", "--context", "16"), ["request 1", "--context"]),
        (("--trace", "BROKEN"), ["line 2"]),
        (("--context", "100"), ["larger --context"]),
        (("--context", "0"), ["--context"]),
        (("--rate", "0"), ["--rate"]),
        (("--rate", "nan"), ["--rate", "finite"]),
        (("--requests", "0"), ["--requests"]),
        (("--step", "0"), ["--step"]),
        (("--step", "nan"), ["--step", "finite"]),
        (("--out", ""), ["--out is empty"]),
        (("--out", "BROKEN"), ["not a folder"]),
        (("--rate", "1", "--rate", "2"), ["--rate is given more than once"]),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    kvik: Call, tmp_path: Path, args: tuple[str, ...], words: list[str]
) -> None:
    paths = {"TRACE": tmp_path / "trace.jsonl", "BROKEN": tmp_path / "broken.jsonl"}
    paths["TRACE"].write_text(dump([Arrival(0.0, 20, 9)]))
    paths["BROKEN"].write_text(dump([Arrival(0.0, 20, 9)]) + "{\n")
    done = kvik("bench", "waste", *(str(paths.get(arg, arg)) for arg in args))
    assert done.status == 2
    assert done.out == ""
    for word in words:
        assert word in done.line


def test_nothing_is_written_when_it_fails(
    kvik: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert kvik(*ALPACA, "--kv", "none", "--out", str(out)).status == 2
    assert not out.exists()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    done = kvik(*ALPACA, "--json", "--out", str(out))
    assert done.status == 2
    assert "No space left" in done.line
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("4096", 4096),
        ("4096B", 4096),
        ("1.5GiB", 3 << 29),
        ("12gib", 12 << 30),
        ("12 GiB", 12 << 30),
        ("12G", 12 << 30),
        ("2GB", 2 * 10**9),
        ("0.5kb", 500),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size
