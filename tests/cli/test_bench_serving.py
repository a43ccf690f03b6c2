"""``kvik bench serving`` as a person calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvik.bench import padded, serving_meter
from kvik.bench.trace import Arrival, dump
from kvik.evaluate import files

from .conftest import Call

KEYS = {
    "system", "recipe", "rate", "offered_tokens_s", "requests", "completed", "refused", "failed",
    "seconds", "tokens", "tokens_s", "requests_s", "ttft", "itl", "latency", "concurrent_mean",
    "concurrent_peak", "preemptions", "prefix_tokens", "peak_bytes",
}  # fmt: skip


@pytest.fixture
def small(tiny_model: Path, tmp_path: Path) -> tuple[str, ...]:
    """Three short requests that arrive almost at once."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text(dump([Arrival(0.1, 20, 3), Arrival(0.2, 60, 2), Arrival(0.3, 5, 4)]))
    args = ("--trace", str(trace), "--scale", "0.5", "--rate", "1000", "--memory", "256KiB")
    return ("bench", "serving", str(tiny_model), *args)


def test_table_notes_and_files(kvik: Call, small: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    done = kvik(*small, "--kv", "fp16", "--kv", "int8+page:8", "--out", str(out))
    assert done.status == 0, done.err
    for text in ("kvik fp16", "kvik int8+page:8", "tok/s", "at once", "* Open loop", "3/3"):
        assert text in done.out
    names = ["serving.json", "serving.svg", "trace.jsonl"]
    assert sorted(path.name for path in out.iterdir()) == names
    result = json.loads((out / "serving.json").read_text())
    assert result["trace"]["scale"] == 0.5
    assert result["trace"]["prompt_mean"] == (10 + 30 + 2) / 3
    assert (out / "serving.svg").read_text().lstrip().startswith("<?xml")
    again = json.loads(
        kvik(*small[:3], "--trace", str(out / "trace.jsonl"), "--scale", "1", "--kv", "fp16",
             "--rate", "1000", "--memory", "256KiB", "--json").out
    )  # fmt: skip
    for key in ("requests", "prompt_mean", "output_most"):
        assert again["trace"][key] == result["trace"][key]


def test_json_says_what_was_measured_and_on_what(kvik: Call, small: tuple[str, ...]) -> None:
    pytest.importorskip("transformers")
    done = kvik(*small, "--kv", "fp32", "--peer", "transformers", "--requests", "2", "--json")
    assert done.status == 0, done.err
    result = json.loads(done.out)
    assert set(result) == {
        "model", "memory_bytes", "step_tokens", "seed", "trace", "runs", "notes", "env",
    }  # fmt: skip
    peer, ours = result["runs"]
    assert set(peer) == KEYS | {"batches"}
    assert set(ours) == KEYS | {"agreement"}
    assert ours["agreement"]["compared"] == ours["requests"] == 2
    assert ours["tokens"] == peer["tokens"] == 3
    assert {"cpu", "threads", "commit", "command", "torch", "transformers"} <= set(result["env"])
    assert result["env"]["transformers"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--memory", "12 bananas"), ["12 bananas"]),
        (("--memory", "100"), ["100 bytes of KV memory hold no page"]),
        (("--kv", "int8+nonsense:3"), ["column 6", "nonsense"]),
        (("--kv", "none"), ["none caches no tokens"]),
        (("--kv", "int4:group=48"), ["int4:group=48"]),
        (("--trace", "missing.jsonl"), ["missing.jsonl"]),
        (("--trace", ""), ["--trace is empty"]),
        (("--trace", "BROKEN"), ["line 2"]),
        (("--trace", "STILL"), ["all arrive at 0 s"]),
        (("--scale", "1000"), ["smaller --scale"]),
        (("--scale", "0"), ["--scale"]),
        (("--rate", "0"), ["--rate"]),
        (("--rate", "nan"), ["--rate"]),
        (("--scale", "nan"), ["--scale", "finite"]),
        (("--requests", "0"), ["--requests"]),
        (("--step-tokens", "0"), ["--step-tokens"]),
        (("--peer", "vllm"), ["--peer", "transformers"]),
        (("--out", ""), ["--out is empty"]),
        (("--out", "BROKEN"), ["not a folder"]),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    kvik: Call, tiny_model: Path, tmp_path: Path, args: tuple[str, ...], words: list[str]
) -> None:
    paths = {"BROKEN": tmp_path / "broken.jsonl", "STILL": tmp_path / "still.jsonl"}
    paths["BROKEN"].write_text(dump([Arrival(1.0, 20, 9)]) + "{\n")
    paths["STILL"].write_text(dump([Arrival(0.0, 20, 9)]))
    options = [str(paths.get(arg, arg)) for arg in args]
    done = kvik("bench", "serving", str(tiny_model), *options)
    assert done.status == 2
    assert done.out == ""
    for word in words:
        assert word in done.line


@pytest.mark.parametrize("missing", ["transformers", "accelerate"])
def test_a_missing_peer_is_one_line(
    kvik: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    find = padded.importlib.util.find_spec
    monkeypatch.setattr(
        padded.importlib.util, "find_spec", lambda name: None if name == missing else find(name)
    )
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    done = kvik("bench", "serving", str(model), "--peer", "transformers")
    assert done.status == 2
    assert f"needs {missing}, which is not installed: pip install 'kvik[hf]'" in done.line


def test_nothing_is_written_when_it_fails(
    kvik: Call, small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    monkeypatch.setattr(files.os, "replace", full)
    done = kvik(*small, "--kv", "fp16", "--json", "--out", str(out))
    assert done.status == 2
    assert "No space left" in done.err
    assert list(out.iterdir()) == []


def test_a_failed_request_is_status_1(
    kvik: Call, small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = serving_meter.Meter.figures
    monkeypatch.setattr(serving_meter.Meter, "figures", lambda self: {**real(self), "failed": 1})
    done = kvik(*small, "--kv", "fp16", "--json")
    assert done.status == 1
    assert done.err.endswith("kvik: 1 request failed\n")


@pytest.mark.slow
def test_an_interrupt_leaves_nothing(tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = f"bench serving {tiny_model} --kv fp16 --rate 0.001 --out {out}"
    process = subprocess.Popen(
        [sys.executable, "-m", "kvik", *command.split()],
        env={**os.environ},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "fp16, 0.001/s ...\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip() == "kvik: interrupted"
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.model
def test_the_real_model_serves_as_transformers_does(kvik: Call) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    done = kvik(
        "bench", "serving", "--requests", "4", "--rate", "100", "--scale", "0.03",
        "--kv", "fp32", "--kv", "int8", "--memory", "6MiB", "--peer", "transformers", "--json",
    )  # fmt: skip
    assert done.status == 0, done.err
    peer, fp32, int8 = json.loads(done.out)["runs"]
    for run in (peer, fp32, int8):
        assert run["completed"] == 4
        assert 0 < run["peak_bytes"] <= 6 << 20
    assert peer["tokens"] == fp32["tokens"] == int8["tokens"]
    agreement = fp32["agreement"]
    assert agreement["compared"] == 4
    assert agreement["widest_gap"] is None or agreement["widest_gap"] < 0.01
    assert int8["concurrent_peak"] >= fp32["concurrent_peak"]
