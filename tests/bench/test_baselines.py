"""Published figures run again: noise, verdicts, workers against each other, tables from records."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik.errors import KvikError

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "bench" / "baselines"
NAMES = ("caches", "noise", "logits", "cells", "reproduce", "comparison")


def _load() -> argparse.Namespace:
    """The scripts' modules, which find each other in their own folders only."""
    places = [str(FOLDER), str(ROOT / "bench" / "peers")]
    sys.path[:0] = places
    try:
        return argparse.Namespace(**{name: importlib.import_module(name) for name in NAMES})
    finally:
        sys.path[:] = [place for place in sys.path if place not in places]


baselines = _load()


# Noise


def sample(kl: Any, seed: int = 0) -> Any:
    """Tokens with the given KL; the rest follows from chance."""
    kl = np.asarray(kl, dtype=np.float64)
    draw = np.random.default_rng(seed)
    nll = draw.exponential(2.0, len(kl))
    return baselines.noise.Sample(kl, draw.random(len(kl)) < 0.9, nll + kl, nll)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=5), st.integers(1, 40))
def test_blocks_are_all_tokens_once_and_stay_in_their_text(lengths: list[int], block: int) -> None:
    cut = baselines.noise.blocks(lengths, block)
    assert np.concatenate(cut).tolist() == list(range(sum(lengths)))
    ends = np.cumsum(lengths)
    for part in cut:
        assert 1 <= len(part) <= block
        assert np.searchsorted(ends, part[0], "right") == np.searchsorted(ends, part[-1], "right")


def test_an_interval_is_that_of_the_mean_of_independent_tokens() -> None:
    values = np.random.default_rng(1).exponential(1.0, 1536)
    low, high = baselines.noise.noise([sample(values)]).interval["kl"]
    assert low < values.mean() < high
    assert (high - low) / (2 * 1.96 * values.std() / 1536**0.5) == pytest.approx(1, abs=0.3)


def test_neighbours_that_are_alike_widen_it_and_single_tokens_would_not_see_that() -> None:
    values = np.repeat(np.random.default_rng(1).exponential(1.0, 48), 32)
    widths = {
        block: np.diff(
            baselines.noise.noise([sample(values)], block=block, draws=100).interval["kl"]
        )[0]
        for block in (1, 32)
    }
    assert widths[32] > 4 * widths[1]


def test_other_text_is_less_certain_and_the_less_the_shorter() -> None:
    values = np.random.default_rng(1).exponential(1.0, 1536)
    many, few = (baselines.noise.noise([sample(values)], n, draws=400) for n in (1536, 512))
    for figure in many.interval:
        inside, same, shorter = (
            np.diff(one)[0]
            for one in (many.interval[figure], many.other_text[figure], few.other_text[figure])
        )
        assert inside < same < shorter


def test_figures_are_what_they_say() -> None:
    one = sample(np.full(64, 0.25))
    found = baselines.noise.figures(one)
    assert found["kl"] == found["kl_p99"] == 0.25
    assert found["ppl_ratio"] == pytest.approx(np.exp(0.25))
    assert found["top1"] == one.agree.mean()


# Workers


class Tiny:
    """A tiny model, 96 tokens of text, and what the full caches of two systems say of it."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.text = baselines.reproduce.Text.of(model, 96, 1)
        self.ids = self.text.ids[0]

    def rows(self, worker: Any, do: str, **asked: Any) -> tuple[np.ndarray, dict[str, Any]]:
        out = self.folder / "rows.npy"
        found = worker.ask(do, ids=self.ids, out=str(out), **asked)
        return np.load(out), found


@pytest.fixture(scope="module")
def tiny(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return Tiny(tiny_model, tmp_path_factory.mktemp("rows"))


def _opened(peer: str, model: Path) -> Iterator[Any]:
    with baselines.reproduce.opened(peer, model, 1) as worker:
        assert worker.versions
        yield worker


@pytest.fixture(scope="module")
def kvik(tiny: Tiny) -> Iterator[Any]:
    yield from _opened("kvik", tiny.model)


@pytest.fixture(scope="module")
def transformers(tiny: Tiny) -> Iterator[Any]:
    """In its own environment, else in this one, which may have it without quanto and hqq."""
    if baselines.reproduce.python_of("quantized_caches"):
        yield from _opened("quantized_caches", tiny.model)
        return
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    script = FOLDER / "transformers_caches.py"
    worker = baselines.reproduce.Process("transformers", Path(sys.executable), script, 1)
    worker.ask("open", model=str(tiny.model), threads=1)
    yield worker
    worker.close()


FORCED = {"context": 64, "chunk": 8}


def whole_run(folder: Path, peer: str, caches: list[Any], model: Path, text: Any) -> list[Any]:
    """The records of one system."""
    protocol = baselines.reproduce.Protocol(context=64, scored=31, chunk=8)
    cells = baselines.cells.Cells(folder)
    run = baselines.reproduce.Run(model, text, protocol, 1, cells, "abc")
    baselines.reproduce.run_quantized(run, peer, caches)
    return list(baselines.reproduce.of_quantized(run, caches))


def test_both_systems_agree_with_their_full_caches(
    tiny: Tiny, kvik: Any, transformers: Any
) -> None:
    ours, mine = tiny.rows(kvik, "forced", cache={"kv": "fp32"}, **FORCED)
    theirs, other = tiny.rows(transformers, "forced", cache={}, **FORCED)
    assert ours.shape == theirs.shape == (32, 258)
    assert np.abs(ours - theirs).max() < 1e-3
    assert mine["elements"] == other["elements"] == other["bytes"] / 4
    assert 0 <= mine["bytes"] - other["bytes"] < 100  # tables


@pytest.mark.parametrize(
    ("recipe", "masked"),
    [
        ("fp32", {}),
        ("fp32+window:24", {"window": 24}),
        ("fp32+sinks:4,positions=original+window:20", {"window": 20, "sinks": 4}),
    ],
)
def test_windows_and_sinks_are_the_masks_that_transformers_gets(
    tiny: Tiny, kvik: Any, transformers: Any, recipe: str, masked: dict[str, int]
) -> None:
    ours, _ = tiny.rows(kvik, "streamed", cache={"kv": recipe})
    theirs, _ = tiny.rows(transformers, "streamed", cache=masked)
    assert np.abs(ours - theirs).max() < 1e-3
    # One token more in the window is seen.
    wrong, _ = tiny.rows(transformers, "streamed", cache=masked | {"window": 25})
    assert np.abs(ours - wrong).max() > 1e-2


def test_recomputing_is_the_same_in_both(tiny: Tiny, kvik: Any, transformers: Any) -> None:
    asked = {"at": [30, 31, 60], "budget": 24}
    ours, _ = tiny.rows(kvik, "recomputed", **asked)
    theirs, _ = tiny.rows(transformers, "recomputed", **asked)
    assert np.abs(ours - theirs).max() < 1e-3


def test_a_quantized_cache_of_transformers_has_the_bits_that_were_published(
    tiny: Tiny, tmp_path: Path
) -> None:
    if baselines.reproduce.python_of("quantized_caches") is None:
        pytest.skip("bench/baselines/install_quantized_caches.sh was not run")
    caches = [one for one in baselines.caches.QUANTIZED if one.peer == "quantized_caches"]
    wanted = [caches[0], caches[2], caches[8]]
    records = whole_run(tmp_path, "quantized_caches", wanted, tiny.model, tiny.text)
    assert [one["bits"] for one in records] == [float(one.published.bits) for one in wanted]
    kls = [one["figures"]["kl"] for one in records]
    assert 0 < kls[0] < kls[1] < kls[2]


def test_llama_cpp_gets_smaller_and_worse_with_fewer_bits(tmp_path: Path) -> None:
    if baselines.reproduce.python_of("llama") is None:
        pytest.skip("bench/peers/install_llama.sh was not run")
    sys.path.insert(0, str(ROOT / "bench" / "peers"))
    try:
        random_gguf = importlib.import_module("random_gguf")
    finally:
        sys.path.remove(str(ROOT / "bench" / "peers"))
    model = tmp_path / "tiny.gguf"
    # Heads of 64: shorter ones are not rotated.
    random_gguf.write(model, replace(random_gguf.SHAPES["tiny"], heads=4, head_dim=64))
    text = baselines.reproduce.Text.of(model, 96, 1)
    caches = [one for one in baselines.caches.QUANTIZED if one.peer == "llama"]
    records = whole_run(tmp_path, "llama", caches, model, text)
    assert [one["bits"] for one in records] == [float(one.published.bits) for one in caches]
    kls = [one["figures"]["kl"] for one in records]
    assert 0 < kls[0] < kls[1] < kls[2]
    # The switch does something.
    assert kls[2] != kls[3]


def test_kviks_records_are_whole_and_a_cache_that_cannot_be_is_left_out(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = baselines.caches.Cache
    caches = [make(name, "kvik", {"kv": name}) for name in ("int8", "int99", "int4")]
    records = whole_run(tmp_path, "kvik", caches, tiny.model, tiny.text)
    assert "int99: kvik: RecipeError" in capsys.readouterr().out
    assert [one["cache"] for one in records] == ["int8", "int4"]
    eight, four = records
    assert json.loads(json.dumps(eight, allow_nan=False))["n"] == 31
    assert 8 < eight["bits"] < 9
    assert 5 <= four["bits"] < 5.1
    assert 0 < eight["figures"]["kl"] < four["figures"]["kl"]
    low, high = four["interval"]["kl"]
    assert low <= four["figures"]["kl"] <= high
    # What is finished is not run again: there is nobody left to run it.
    monkeypatch.setattr(baselines.reproduce, "python_of", lambda peer: None)
    assert whole_run(tmp_path, "kvik", [caches[0], caches[2]], tiny.model, tiny.text) == records
    with pytest.raises(KvikError, match="kvik is not installed"):
        whole_run(tmp_path, "kvik", caches, tiny.model, tiny.text)


def test_a_missing_environment_is_said_to_be(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KVIK_PEERS", str(tmp_path))
    with (
        pytest.raises(KvikError, match="llama is not installed"),
        baselines.reproduce.opened("llama", tiny.model, 1),
    ):
        pass


def test_scores_see_rows_that_are_one_off(tiny: Tiny, kvik: Any, tmp_path: Path) -> None:
    """A control: the full cache's own logits, one row late."""
    rows, _ = tiny.rows(kvik, "forced", cache={"kv": "fp32"}, **FORCED)
    same, late = tmp_path / "same.npy", tmp_path / "late.npy"
    np.save(same, rows)
    np.save(late, np.roll(rows, 1, axis=0))
    full = baselines.reproduce.Full.of(same, [*tiny.ids[65:], 0])
    assert baselines.noise.figures(full.against(same)) == {
        "kl": 0.0,
        "kl_p99": 0.0,
        "top1": 1.0,
        "ppl_ratio": 1.0,
    }
    assert baselines.noise.figures(full.against(late))["kl"] > 0.1
    np.save(late, rows[[3, 9]])
    assert baselines.noise.figures(full.against(late, [3, 9]))["kl"] == 0


def test_a_file_of_logits_has_all_of_its_rows(tmp_path: Path) -> None:
    out = baselines.logits.Out(tmp_path / "rows.npy", 3, 4)
    out.add(np.ones((2, 4)))
    with pytest.raises(ValueError, match="2 rows of 3"):
        out.close()
    with pytest.raises(ValueError, match="4 rows for a file of 3"):
        out.add(np.ones((2, 4)))
    out.add(np.ones((1, 4)))
    out.close()
    assert (np.load(tmp_path / "rows.npy") == 1).all()


# Tables


def record(cache: Any, kl: float = 0.02, **more: Any) -> dict[str, Any]:
    """What a run leaves of a cache, with an interval of a tenth and twice that for other text."""
    value = {"kl": kl, "kl_p99": 10 * kl, "top1": 0.95, "ppl_ratio": 1 + kl}
    width = {name: [one * 0.9, one * 1.1] for name, one in value.items()}
    wider = {name: [one * 0.8, one * 1.2] for name, one in value.items()}
    env = {"cpu": "chip", "cores": 2, "instruction_sets": ["avx2"], "commit": "abc"}
    made = {"part": "quantized", "system": cache.peer, "cache": cache.name, "bits": 5.0}
    made |= {"figures": value, "interval": width, "other_text": {"n": 512, **wider}}
    made |= {
        "n": 1536,
        "commits": ["abc"],
        "by_offset": [value],
        "versions": {"x": "1"},
        "starts": [0, 7],
        "ppl": 9.0,
    }
    return made | {"env": env} | more


@pytest.mark.parametrize(
    ("published", "word"),
    [
        ("0.0200", "in"),
        ("0.0220", "in"),
        ("0.0230", "near"),
        ("0.0250", "**out**"),
        ("1", "**out**"),
    ],
)
def test_a_published_figure_is_judged(published: str, word: str) -> None:
    one = record(baselines.caches.QUANTIZED[0])
    assert baselines.comparison.place(one, "kl", published) == word


def test_a_figure_is_not_held_to_more_digits_than_were_published() -> None:
    one = record(baselines.caches.QUANTIZED[0], kl=0.0005)
    assert baselines.comparison.place(one, "kl", "0.001") == "in"
    assert baselines.comparison.place(one, "kl", "0.0010") == "**out**"


def test_the_newest_record_is_shown_and_what_is_missing_said() -> None:
    cache = baselines.caches.QUANTIZED[2]
    page = baselines.comparison.render([record(cache, 0.5), record(cache, 0.0156)])
    assert "0.500" not in page
    assert f"| {cache.name} | 1536 / 1536 | 5.0 / 5.00 | .0156 / 0.0156 in |" in page
    assert f"| {baselines.caches.QUANTIZED[0].name} | not measured |" in page
    assert "Nothing was measured yet." in baselines.comparison.render([])


def test_every_cache_has_a_name_of_its_own_and_every_published_one_a_worker() -> None:
    caches = baselines.caches
    assert len({(one.peer, one.name) for one in caches.QUANTIZED}) == len(caches.QUANTIZED)
    assert len({(one.peer, one.name) for one in caches.STREAMS}) == len(caches.STREAMS)
    assert {one.peer for one in caches.QUANTIZED} == set(caches.WORKERS)
    for script in caches.WORKERS.values():
        assert (FOLDER / script).exists()
    streamed = {one.name for one in caches.STREAMS}
    assert {name for name, _ in caches.PUBLISHED_STREAMS} <= streamed


def test_the_tables_in_the_docs_are_what_the_records_say() -> None:
    comparison = baselines.comparison
    page = comparison.PAGE.read_text()
    lines = comparison.RESULTS.read_text().splitlines()
    assert comparison.placed(page, comparison.render(map(json.loads, lines))) == page


def test_the_install_script_is_sound_and_pins_its_peers() -> None:
    path = FOLDER / "install_quantized_caches.sh"
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    assert "make_environment quantized_caches " in path.read_text()
    for package in ("transformers", "optimum-quanto", "hqq"):
        assert f'"{package}==' in path.read_text()
    assert path.stat().st_mode & 0o100
