"""The report holds the facts of compare.json, escaped, and asks nobody for anything."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from kvik.evaluate.figures import COLUMNS, kl_text
from kvik.evaluate.report import kl_length, render

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
    }


def comparison() -> dict[str, Any]:
    failed = dict.fromkeys(result("", 1, 0)) | {"recipe": "int4<x>", "error": "out of <memory>"}
    return {
        "model": "<script>alert(1)</script>",
        "context": 2048,
        "env": ENV,
        "results": [result("fp32", 94371840, 0.0), result("int8", 25067520, 4e-5), failed],
    }


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed_and_self_contained() -> None:
    page = render(comparison())
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not tags.seen & {"script", "link", "img", "iframe", "b"}
    assert not {name for name, _ in tags.attributes} & {"src", "href", "onload", "onclick"}
    assert "http" not in page
    assert "url(" not in page
    assert "@import" not in page


def test_texts_from_outside_are_escaped() -> None:
    page = render(comparison())
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "int4&lt;x&gt;" in page
    assert "out of &lt;memory&gt;" in page
    assert "A &lt;b&gt;CPU&lt;/b&gt;" in page


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


def test_kl_bars_grow_with_kl() -> None:
    lengths = [kl_length(kl) for kl in (0.0, 1e-7, 1e-5, 1e-3, 0.1, 10.0, 100.0)]
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (0.0, 1.0)
