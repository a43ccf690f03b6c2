"""The page, the pictures and the files of an evaluation."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call
from tests.cli.conftest import kvik as call_kvik

from kvik.evaluate.outcome.charts import draw
from kvik.evaluate.outcome.report import render
from kvik.evaluate.outcome.sheets import sheets

kvik = call_kvik  # the fixture of the tests of the command


@pytest.fixture
def left(tiny_model: Path, tmp_path: Path, kvik: Call) -> tuple[Path, dict[str, Any], str]:
    words = (
        f"eval {tiny_model} --kv int8 --kv fp32+window:24 --task kl --task drift --task needle "
        f"--task distance --task multikey --context 500 --context 600 --samples 1 --scored 40 "
        f"--workers 1 --out {tmp_path / 'out'}"
    )
    done = kvik(*words.split())
    assert done.status == 0, done.err
    result = json.loads((tmp_path / "out" / "eval.json").read_text())
    return tmp_path / "out", result, done.out


@pytest.mark.slow
def test_a_folder_has_everything_and_the_page_needs_nothing(
    left: tuple[Path, dict[str, Any], str],
) -> None:
    folder, result, out = left
    names = {p.name for p in folder.iterdir()}
    assert {"results.jsonl", "eval.json", "eval.html", "figures.csv", "maps.csv"} <= names
    pictures = {p.stem for p in folder.glob("*.png")}
    assert {
        "kl-bytes",
        "kl-context",
        "drift-steps",
        "distance-back",
        "multikey-context",
    } <= pictures
    assert {"needle-0-fp32", "needle-1-int8", "needle-2-fp32-window-24"} <= pictures
    page = (folder / "eval.html").read_text()
    assert "<script" not in page
    urls = re.findall(r"https?://[^\"' <]*", page)
    assert all(url.startswith("http://www.w3.org/") for url in urls), "namespaces alone"
    for path in ("/tmp", str(folder)):
        assert path not in json.dumps({**result, "env": None})
    figures = list(csv.DictReader(io.StringIO((folder / "figures.csv").read_text())))
    assert len(figures) == len(result["rows"]) == 5 * 2 * 3
    kl = next(r for r in result["rows"] if r["task"] == "kl" and r["recipe"] == "int8")
    line = next(r for r in figures if r["task"] == "kl" and r["recipe"] == "int8")
    assert float(line["kl"]) == kl["kl"]["value"]
    assert float(line["kl_high"]) == kl["kl"]["high"]
    assert "Noise floor" in out


def test_what_comes_from_outside_is_escaped() -> None:
    env = {"command": "<b>", "kvik": "0", "commit": None, "cpu": "c", "cores": 1, "python": "3"}
    result = {
        "model": "<script>alert(1)</script>",
        "text": "<i>",
        "text_sha256": "0",
        "model_identity": "0",
        "seed": 0,
        "early": False,
        "template": "<|im_start|>&",
        "env": env | {"memory_bytes": 1, "torch": "2"},
        "rows": [],
        "failed": [
            {"task": "kl", "where": {"context": 1}, "recipe": "int8", "error": "<img src=x>"}
        ],
    }
    page = render(result, draw(result))
    for raw in ("<script>", "<i>", "<b>", "<img", "<|im_start|>"):
        assert raw not in page
    assert "&lt;|im_start|&gt;&amp;" in page
    assert sheets(result)["maps.csv"].count("\n") == 1
