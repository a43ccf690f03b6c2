"""``kvik inspect`` as a person calls it."""

from __future__ import annotations

import csv
import json
import re
from html import escape
from pathlib import Path

import pytest

from kvik import machine
from kvik.evaluate.inspect import run

from .conftest import Call

FILES = {"inspect.json", "inspect.html", "layers.csv", "query_heads.csv", "kv_heads.csv"}


def test_everything_that_is_left_behind(kvik: Call, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = kvik("inspect", str(tiny_model), "--context", "96", "--out", str(out), "--json")
    assert done.status == 0
    assert done.out == (out / "inspect.json").read_text()
    assert done.err == f"{tiny_model}: 2 layers ...\n"
    facts = json.loads(done.out)
    names = {path.name for path in out.iterdir()}
    assert names > FILES | {"channels.csv"}
    images = [path for path in out.iterdir() if path.suffix == ".png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in images)
    assert {"sinks.png", "errors-output.png", "channels-k.png"} <= names
    assert facts["context"] == 96
    assert [layer["kind"] for layer in facts["layers"]] == ["full", "full"]

    page = (out / "inspect.html").read_text()
    # Each picture of the page is a file, every finding is on it, and it asks for nothing.
    assert page.count("<svg ") == len(images)
    for finding in facts["findings"]:
        assert escape(finding["rests"]) in page
        assert escape(finding["figure"]).replace(" %", "\u00a0%") in page
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) <= {"data:,"} | set(
        re.findall(r'href="(#[^"]*)"', page)
    )
    assert not re.search(r"https?://|@import|<script|url\((?!#)", page)

    rows = list(csv.DictReader((out / "query_heads.csv").read_text().splitlines()))
    assert len(rows) == 2 * 4
    shown = float(rows[5]["first_4"])
    assert shown == facts["layers"][1]["attention"]["sink"]["4"][1]
    heads = list(csv.DictReader((out / "kv_heads.csv").read_text().splitlines()))
    assert len(heads) == 2 * 2
    assert (
        float(heads[3]["k_outlier"]) == facts["layers"][1]["stored"]["streams"]["k"]["outlier"][1]
    )
    assert len(list(csv.DictReader((out / "channels.csv").read_text().splitlines()))) == 2 * 2 * 32


def test_without_a_folder_the_figures_are_printed(kvik: Call, tiny_model: Path) -> None:
    done = kvik("inspect", str(tiny_model), "--context", "64")
    assert done.status == 0
    for word in ("first 4", "K outlier", "* Attention sinks: ", "* Heads differ: "):
        assert word in done.out


def test_help(kvik: Call) -> None:
    done = kvik("inspect", "--help")
    assert (done.status, done.err) == (0, "")
    assert "Examples:\n  kvik " in done.out
    assert "--json" in done.out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("MODEL", "--context", "1"), ["--context 1 is too short", "at least 64"]),
        (("MODEL", "--context", "0"), ["--context"]),
        (("MODEL", "--context", "9999999"), ["--context"]),
        (("MODEL", "--text", "SHORT"), ["tokens", "1,024 are needed", "smaller --context"]),
        (("MODEL", "--text", "EMPTY"), ["is empty"]),
        (("MODEL", "--text", "no-such-file"), ["no-such-file"]),
        (("MODEL", "--out", "FILE/below"), ["not a folder"]),
        (("MODEL", "--out", "/proc/kvik"), ["cannot write to /proc/kvik"]),
        (("MODEL", "--out", ""), ["--out is empty"]),
        (("no-such-model",), ["no-such-model"]),
        (("missing.gguf",), ["missing.gguf"]),
        ((), ["MODEL"]),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    kvik: Call, tiny_model: Path, tmp_path: Path, args: tuple[str, ...], words: list[str]
) -> None:
    files = {"SHORT": "A short text.", "EMPTY": " \n", "FILE": "mine"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    names = {"MODEL": str(tiny_model)} | {name: str(tmp_path / name) for name in files}
    given = [names.get(arg, arg.replace("FILE", names["FILE"])) for arg in args]
    done = kvik("inspect", *given)
    assert (done.status, done.out) == (2, "")
    assert done.line.startswith("kvik: ")
    for word in words:
        assert word in done.line
    assert {path.name for path in tmp_path.iterdir()} == set(files)


def test_a_text_that_does_not_fit_is_said_before_it_starts(
    kvik: Call, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: run.BLOCKS_BYTES)
    done = kvik("inspect", str(tiny_model))
    assert done.status == 2
    assert "inspecting 1,024 tokens needs" in done.line
    assert "smaller --context" in done.line


def test_more_than_the_models_context_is_warned_of(kvik: Call, tiny_base_model: Path) -> None:
    done = kvik("inspect", str(tiny_base_model), "--context", "300", "--json")
    assert done.status == 0
    assert done.err.startswith("kvik: warning: 300 tokens are beyond the 256")


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_what_the_real_models_are_known_for(kvik: Call, name: str) -> None:
    """Sinks, outlier channels of K and what the cache's own layers see."""
    facts = json.loads(kvik("inspect", name, "--context", "640", "--json").out)
    full = [layer for layer in facts["layers"] if layer["window"] is None]
    sinks = [max(layer["attention"]["sink"]["4"]) for layer in full]
    assert max(sinks) > 0.3
    outliers = [max(layer["stored"]["streams"]["k"]["outlier"]) for layer in facts["layers"]]
    assert min(outliers) > 3
    error = {way: 0.0 for way in ("k_token", "k_channel", "v_token", "v_channel")}
    for layer in facts["layers"]:
        for way in error:
            error[way] += sum(layer["output_error"][way])
    assert error["k_channel"] < 0.5 * error["k_token"]
    assert error["v_token"] < error["v_channel"]
    for layer in facts["layers"]:
        if layer["window"] is not None:
            seen = [min(p + 1, layer["window"]) for p in range(320, 640)]
            assert layer["attention"]["seen"] == sum(seen) / 320
