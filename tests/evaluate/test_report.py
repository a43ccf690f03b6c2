"""The report holds the facts of compare.json, escaped, and asks nobody for anything."""

from __future__ import annotations

import copy
import csv
import io
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from kvik.evaluate.baseline import Baseline
from kvik.evaluate.charts import draw, rows_of
from kvik.evaluate.figures import COLUMNS, kl_text
from kvik.evaluate.report import render
from kvik.evaluate.sheets import sheets

ENV = {
    "cpu": "A <b>CPU</b>",
    "cores": 2,
    "threads": 2,
    "instruction_sets": ["avx2", "fma"],
    "memory_bytes": 2**34,
    "system": "Linux x86_64",
    "python": "3.11.7",
    "torch": "2.13.0",
    "kvik": "0.1.0",
    "commit": "abc123",
    "command": "kvik compare 'a&b'",
}


def result(recipe: str, size: int, kl: float) -> dict[str, Any]:
    return {
        "recipe": recipe,
        "planned_bytes": size,
        "measured_bytes": size,
        "bytes_per_token": size / 2048,
        "kl_mean": kl,
        "kl_p99": kl * 8,
        "top1": 0.95,
        "ppl": 12.3,
        "needle_hits": 2,
        "needle_total": 3,
        "prefill_tok_s": 240.0,
        "decode_tok_s": 9.5,
        "peak_rss_bytes": 2**30,
        "growth_bytes": [size // 2, size, 2 * size],
        "outgrows_weights_at": None if size < 2**26 else 3000,
        "layer_bytes": [size // 2, size // 2],
        "table_bytes": 0,
        "kept": [{"layers": [0, 1], "head": None, "spans": [[0, 2048 if kl < 1e-5 else 1000]]}],
        "decode_curve": [12.0, 9.5],
        "needle_cells": [{"hit": True, "logprob": -0.1}, {"hit": kl == 0, "logprob": -3 - kl}],
    }


def comparison() -> dict[str, Any]:
    failed = dict.fromkeys(result("", 1, 0)) | {"recipe": "int4<x>", "error": "out of <memory>"}
    return {
        "model": "<script>alert(1)</script>",
        "context": 2048,
        "env": ENV,
        "results": [result("fp32", 94371840, 0.0), result("int8", 25067520, 4e-5), failed],
        "model_sha256": "0" * 64,
        "weights_bytes": 98_362_432,
        "trained_context": 8192,
        "text": {"name": "<i>book</i>.txt", "sha256": "1" * 64},
        "quality": {"offsets": 1, "scored": 512},
        "speed": {"contexts": [1024, 2048], "steps": 16},
        "needle": {
            "prompt": "<|user|>{noise}",
            "noise": "built-in",
            "cells": [{"length": 2048, "depth": 0.1}, {"length": 2048, "depth": 0.9}],
            "counted": [True, True],
        },
        "growth": {"contexts": [1024, 2048, 4096]},
    }


def with_baseline() -> dict[str, Any]:
    facts = comparison()
    old = copy.deepcopy(facts)
    old["results"][1]["kl_mean"] = 3e-5
    old["results"][1]["decode_tok_s"] = 19.0
    old["results"].append(result("fp16", 1, 0.0))
    old["env"] = ENV | {"cpu": "An <i>older</i> one"}
    Baseline("<u>old</u>.json", old).compare(facts)
    return facts


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("facts", [comparison(), with_baseline()])
def test_page_is_well_formed_and_self_contained(facts: dict[str, Any]) -> None:
    page = render(facts)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not tags.seen & {"script", "img", "iframe", "b", "i", "u", "object", "embed", "a"}
    names = {name for name, _ in tags.attributes}
    assert not {name for name in names if name.startswith("on")} | names & {"src", "srcset"}
    addresses = {value for name, value in tags.attributes if name.endswith("href") and value}
    assert {address for address in addresses if not address.startswith("#")} == {"data:,"}
    assert not re.search(r"https?:|//|@import|url\((?!#)", page)
    ids = [value for name, value in tags.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert "default-src 'none'" in page


def test_texts_from_outside_are_escaped() -> None:
    page = render(comparison())
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "int4&lt;x&gt;" in page
    assert "out of &lt;memory&gt;" in page
    assert "A &lt;b&gt;CPU&lt;/b&gt;" in page
    assert "&lt;i&gt;book&lt;/i&gt;.txt" in page
    assert "&lt;|user|&gt;{noise}" in page
    page = render(with_baseline())
    assert "&lt;u&gt;old&lt;/u&gt;.json" in page
    assert "An &lt;i&gt;older&lt;/i&gt; one" in page


def test_every_figure_is_on_the_page() -> None:
    facts = comparison()
    page = render(facts)
    for figures in facts["results"][:2]:
        for column in COLUMNS:
            assert f"<td>{column.write(figures)}</td>" in page
    for fact in ("abc123", "0.1.0", "2.13.0", "3.11.7", "avx2 fma", "16.0 GiB", "a&amp;b"):
        assert fact in page
    assert re.search(r"2,048 tokens of context", page)


def test_a_difference_between_plan_and_measurement_is_shown() -> None:
    facts = comparison()
    facts["results"][0]["planned_bytes"] += 2**20
    assert "90.0 MiB (planned 91.0 MiB)" in render(facts)


@pytest.mark.parametrize(
    ("kl", "text"),
    [(0.0, "0"), (4.2e-8, "4.2e-08"), (0.000412, "0.00041"), (0.0156, "0.016"), (1.99, "1.99")],
)
def test_kl_is_written_with_two_digits(kl: float, text: str) -> None:
    assert kl_text(kl) == text


def test_pictures_are_of_the_figures() -> None:
    charts = {chart.picture.name: chart for chart in draw(comparison())}
    assert list(charts) == [
        "memory",
        "quality",
        "speed",
        "layers",
        "needles-0-fp32",
        "needles-1-int8",
        "kept-0-int8",
    ]
    assert "outgrows them with fp32 at 3,000 tokens. It never does with int8." in (
        charts["memory"].caption
    )
    assert "Found 2 of the 2" in charts["needles-0-fp32"].caption
    assert "Found 1 of the 2" in charts["needles-1-int8"].caption
    for name, words in (
        ("memory", ["fp32", "int8", "weights", "KV outgrows the weights", "64 MiB"]),
        ("quality", ["fp32", "int8", "≤1e-6"]),
        ("needles-1-int8", ["✓ -0.1", "✗ -3.0", "2,048", "10%", "90%"]),
        ("kept-0-int8", ["position", "layer"]),
    ):
        for word in words:
            assert f">{word}</text>" in charts[name].picture.svg(), (name, word)


def test_cells_that_the_full_cache_misses_do_not_count() -> None:
    facts = comparison()
    facts["needle"]["counted"] = [True, False]
    charts = {chart.picture.name: chart for chart in draw(facts)}
    assert "Found 1 of the 1" in charts["needles-1-int8"].caption
    assert "✗" not in charts["needles-1-int8"].picture.svg()
    assert "not counted" in charts["needles-1-int8"].picture.svg()
    assert "counts: 1 of 2" in render(facts)


def test_a_comparison_of_nothing_but_failures_is_a_page() -> None:
    facts = comparison()
    facts["results"] = facts["results"][2:]
    assert list(draw(facts)) == []
    assert "out of &lt;memory&gt;" in render(facts)


def test_rows_of_heads_stand_in_order() -> None:
    kept = [
        {"layers": [1], "head": 1, "spans": [[0, 3]]},
        {"layers": [1], "head": 0, "spans": [[0, 2]]},
        {"layers": [0, 2], "head": None, "spans": [[0, 9]]},
    ]
    assert rows_of(kept) == [
        ("0", [(0, 9)]),
        ("1.0", [(0, 2)]),
        ("1.1", [(0, 3)]),
        ("2", [(0, 9)]),
    ]


def test_changes_stand_beside_their_figures() -> None:
    facts = with_baseline()
    fp32, int8, failed = facts["results"]
    assert set(fp32["change"].values()) == {0}
    assert int8["change"]["kl_mean"] == pytest.approx(1e-5)
    assert set(failed["change"].values()) == {None}
    page = render(facts)
    assert "<small>+1.0e-05</small>" in page
    assert "<small>−50%</small>" in page
    assert page.count("<small>=</small>") == 2 * len(COLUMNS) - 2
    assert "Measured there and not here: fp16." in page
    assert "of different machines (cpu)" in page
    assert "<small>" not in render(comparison())


def test_sheets_hold_every_figure() -> None:
    facts = with_baseline()
    facts["results"][2]["error"] = "=1+1"
    tables = {name: list(csv.DictReader(io.StringIO(text))) for name, text in sheets(facts).items()}
    fp32, int8, failed = tables["figures.csv"]
    assert (int8["recipe"], float(int8["kl_mean"])) == ("int8", 4e-5)
    assert float(int8["change_decode_tok_s"]) == -9.5
    assert (fp32["error"], failed["kl_mean"], failed["error"]) == ("", "", "'=1+1")
    assert [(r["recipe"], r["depth"], r["hit"]) for r in tables["needles.csv"]] == [
        ("fp32", "0.1", "1"),
        ("fp32", "0.9", "1"),
        ("int8", "0.1", "1"),
        ("int8", "0.9", "0"),
    ]
    curve = [r for r in tables["curves.csv"] if r["recipe"] == "int8"]
    assert [(r["figure"], r["at"]) for r in curve[:5]] == [
        ("planned_bytes", "1024"),
        ("planned_bytes", "2048"),
        ("planned_bytes", "4096"),
        ("decode_tok_s", "1024"),
        ("decode_tok_s", "2048"),
    ]
