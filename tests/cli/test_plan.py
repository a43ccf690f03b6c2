"""``kvik plan`` and ``kvik export`` as a person calls them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from kvik.commands.plan import share

from .conftest import Call

KEYS = [
    "model", "context", "batch", "recipe", "kv", "weights", "engine", "device", "fits",
    "max_context", "max_batch", "notes",
]  # fmt: skip


def test_json_has_the_stated_keys(kvik: Call) -> None:
    done = kvik("plan", "llama-3-8b", "--context", "4096", "--device", "h100", "--json")
    assert done.status == 0
    found = json.loads(done.out)
    assert list(found) == KEYS
    assert list(found["kv"]) == [
        "bytes", "bytes_per_token", "growth_bytes_per_token", "state_bytes_per_sequence", "layers",
    ]  # fmt: skip
    assert list(found["weights"]) == ["bytes"]
    assert list(found["engine"]) == [
        "name", "reserved_bytes_per_request", "pool_tokens", "max_concurrency",
    ]  # fmt: skip
    assert found["device"] == {"name": "H100", "memory_bytes": 81_559 << 20}
    assert found["kv"]["bytes"] == 512 << 20
    assert len(found["kv"]["layers"]) == 32
    assert found["fits"] is True


def test_the_tables_say_the_same_figures(kvik: Call) -> None:
    done = kvik(
        "plan", "Gemma-3-27B", "--kv", "int8/int4", "--context", "8192", "--batch", "3",
        "--memory", "80GiB", "--explain", "--stack",
    )  # fmt: skip
    data = json.loads(
        kvik(
            "plan", "gemma-3-27b", "--kv", "int8/int4", "--context", "8192", "--batch", "3",
            "--memory", "80GiB", "--json",
        ).out
    )  # fmt: skip
    assert done.status == 0
    for figure in (
        data["kv"]["bytes"],
        data["engine"]["reserved_bytes_per_request"],
        data["max_context"],
        data["max_batch"],
        data["kv"]["layers"][5]["bytes"],
    ):
        assert f"{figure:,}" in done.out
    assert "0-4,6-10,12-16" in done.out
    assert "MHA: K and V for every query head" in done.out
    assert "K and V of 16 heads x 128 in int8 / int4" in done.out
    assert "kvik: pages of the recipe's size" in done.out


def test_stack_in_json(kvik: Call) -> None:
    done = kvik("plan", "llama-2-70b", "--context", "4096", "--stack", "--json")
    steps = json.loads(done.out)["stack"]
    assert [step["bytes"] for step in steps[:2]] == [10 << 30, 1280 << 20]


def test_what_is_not_a_recipe_word_is_a_type_of_the_engine(kvik: Call) -> None:
    done = kvik(
        "plan", "gemma-4-26b-a4b", "--kv", "fp8", "--engine", "vLLM", "--context", "131072",
        "--available", "54.14GiB", "--json",
    )  # fmt: skip
    assert round(json.loads(done.out)["engine"]["max_concurrency"], 2) == 25.41


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--device", "h100", "--memory", "80GiB"), ["--device and --memory contradict"]),
        (("--memory", "80GiB", "--available", "1GiB"), ["contradict"]),
        (("--memory", "-5GiB"), ["--memory", "no size"]),
        (("--memory", "0"), ["--memory"]),
        (("--memory", "999999999999999TiB"), ["more than any machine has"]),
        (("--available", "1e99"), ["--available"]),
        (("--available", ""), ["--available"]),
        (("--memory", "nan"), ["--memory"]),
        (("--device", "h1000"), ["did you mean H100"]),
        (("--context", "0"), ["--context"]),
        (("--context", "-4"), ["--context"]),
        (("--context", "99999999999999999999"), ["--context"]),
        (("--batch", "0"), ["--batch"]),
        (("--tp", "0"), ["--tp"]),
        (("--tp", "7"), ["query heads"]),
        (("--pp", "99"), ["32 layers"]),
        (("--engine", "vlm"), ["did you mean vllm"]),
        (("--engine", "llama.cpp"), ["did you mean llamacpp"]),
        (("--weights", "fp61"), ["fp16"]),
        (("--kv", "int88"), ["did you mean", "int8"]),
        (("--kv", "int8+int4"), ["int8", "int4"]),
        (("--kv", "turboquant_k8v4"), ["--engine vllm"]),
        (("--kv", "int8", "--kv", "int4"), ["more than once"]),
        (("--engine", "vllm", "--cp", "2"), ["must divide"]),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    args: tuple[str, ...], words: list[str], kvik: Call
) -> None:
    done = kvik("plan", "llama-3-8b", *args)
    assert (done.status, done.out) == (2, "")
    for word in words:
        assert word in done.line


@pytest.mark.parametrize("verb", ["plan", "export"])
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("lama-3-8b", ["did you mean", "Llama-3-8B"]),
        ("", ["kvik:"]),
        ("no-such.gguf", ["no-such.gguf"]),
        ("x" * 5000, ["kvik:"]),
        ("a\0b", ["kvik:"]),
    ],
)
def test_unknown_models(verb: str, model: str, words: list[str], kvik: Call) -> None:
    done = kvik(verb, model, "--kv", "fp16", "--engine", "vllm")
    assert (done.status, done.out) == (2, "")
    for word in words:
        assert word in done.line


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{" * 200_000),
        ("config.json", "[" * 200_000 + "]" * 200_000),
        ("config.json", "{}"),
        ("config.json", '{"model_type": "llama", "num_hidden_layers": 1e400}'),
        ("model.gguf", "GGUF" + "\3\0\0\0" + "\x7f" * 64),
        ("model.gguf", ""),
    ],
)
def test_hostile_files(name: str, content: str, tmp_path: Path, kvik: Call) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="latin-1")
    start = time.process_time()
    done = kvik("plan", str(path))
    assert time.process_time() - start < 5
    assert (done.status, done.out) == (2, "")
    assert done.line.startswith("kvik: ")


BARE = {
    "model_type": "falcon", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
    "vocab_size": 100,
}  # fmt: skip


def test_a_model_that_names_no_context_asks_for_one(tmp_path: Path, kvik: Call) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BARE))
    for verb in (("plan",), ("export", "--kv", "fp16", "--engine", "vllm")):
        done = kvik(verb[0], str(path), *verb[1:])
        assert (done.status, done.out) == (2, "")
        assert "give --context N" in done.line
    done = kvik("plan", str(path), "--context", "64", "--memory", "1GiB")
    assert done.status == 0
    assert "trained for" not in done.out


def test_a_pipe_is_no_missing_file(tmp_path: Path, kvik: Call) -> None:
    for name in ("x.json", "x.gguf"):
        os.mkfifo(tmp_path / name)
        done = kvik("plan", str(tmp_path / name))
        assert (done.status, "no such file" in done.line) == (2, False)
        assert "file" in done.line


def test_what_rounds_to_nothing_has_no_sign(kvik: Call) -> None:
    done = kvik("plan", "llama-2-70b", "--kv", "int4", "--context", "131072", "--stack")
    assert "as kvik reserves it" in done.out
    assert "-0.0%" not in done.out
    assert (share(-0.0004), share(-0.001), share(0.25)) == ("0.0%", "-0.1%", "25.0%")


def test_unknown_weights_are_unknown_in_the_table(tmp_path: Path, kvik: Call) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BARE | {"model_type": "apertus", "intermediate_size": 64}))
    done = kvik("plan", str(path), "--context", "64", "--device", "t4")
    assert done.status == 0
    rows = [line.split() for line in done.out.splitlines()]
    assert ["fits", "unknown"] in rows
    assert ["largest", "batch", "unknown"] in rows
    data = json.loads(kvik("plan", str(path), "--context", "64", "--device", "t4", "--json").out)
    assert data["fits"] is data["max_context"] is data["max_batch"] is None


def test_export_takes_the_steps_of_the_device(kvik: Call) -> None:
    """The plan for an A100 assumes 2,048 tokens in flight, and so does its launch command."""
    asked = ("gpt-oss-20b", "--kv", "fp8", "--engine", "vllm", "--device", "a100")
    done = kvik("export", *asked)
    assert done.status == 2
    assert "A100-40GB" in done.err
    asked = (*asked[:-1], "a100-80gb")
    assert "up to 2,048 tokens in flight" in kvik("plan", *asked).out
    assert "--max-num-batched-tokens 2048" in kvik("export", *asked).out
    assert "--max-num-batched-tokens 64" in kvik("export", *asked, "--inflight", "64").out


def test_export_prints_the_command_and_what_is_left_out(kvik: Call) -> None:
    done = kvik("export", "llama-3-8b", "--kv", "q8_0/q4_0+window:64", "--engine", "llamacpp")
    assert done.status == 0
    assert "-ctk q8_0" in done.out
    assert "llama.cpp cannot: window:64" in done.err
    done = kvik("export", "llama-3-8b", "--kv", "int8", "--engine", "trtllm", "--json")
    found = json.loads(done.out)
    assert list(found) == ["model", "recipe", "engine", "command", "files", "cannot", "notes"]
    assert "fp8" in found["files"]["kv.yaml"]
    assert len(found["cannot"]) == 1
    done = kvik("export", "llama-3-8b", "--kv", "int8", "--engine", "sglan")
    assert (done.status, "did you mean sglang" in done.line) == (2, True)
