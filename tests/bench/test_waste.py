"""The report: the order of the four systems is the paper's, on traffic shaped like the paper's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.bench import small

from kvik.bench.picture import PARTS, draw, make_table
from kvik.bench.shapes import SHAPES as MODELS
from kvik.bench.trace import SHAPES, Arrival, generate
from kvik.bench.waste import Setting, document, measure
from kvik.errors import CapacityError, KvikError
from kvik.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]


def test_shares_are_in_the_order_of_the_paper() -> None:
    """Figure 2 of arXiv 2309.06180: 20.4, 26.8, 38.2 and, for the paper's own pages, 96.3 %."""
    plan = Recipe.parse("fp16+page:16").resolve(MODELS["opt-13b"])
    setting = Setting(plan, 12 << 30, 2048)
    trace = generate(SHAPES["sharegpt"], requests=80, rate=10.0, context=2048, seed=0)
    runs = measure(setting, trace)
    most, pow2, oracle, kvik = (run.parts.shares() for run in runs)
    assert 0.15 < most["tokens"] < pow2["tokens"] < oracle["tokens"] < 0.45
    assert kvik["tokens"] > 0.93
    assert kvik["stranded"] <= 0.02
    assert most["internal"] > 0.5
    assert min(pow2["external"], oracle["external"]) > 0.25
    assert oracle["internal"] == kvik["external"] == 0
    assert runs[0].peak == 7
    assert [r.mean for r in runs] == sorted(r.mean for r in runs)
    assert runs[3].mean > 2 * runs[2].mean


@pytest.fixture(scope="module")
def result() -> dict[str, object]:
    setting, trace = small.setting(), small.trace()
    return document(setting, trace, measure(setting, trace))


def test_the_document_says_it_all_in_plain_json(result: dict[str, object]) -> None:
    read = json.loads(json.dumps(result, allow_nan=False))
    assert [row["system"] for row in read["systems"]] == ["Max", "Pow2", "Oracle", "kvik"]
    for row in read["systems"]:
        assert list(row["shares"]) == [part for part, _, _ in PARTS]
        assert sum(row["shares"].values()) == pytest.approx(1)
        assert sum(row["byte_steps"].values()) == row["steps"] * read["memory_bytes"]
        assert row["finished"] == read["trace"]["requests"] == 60
        assert row["finished_in_time"] <= 60
        assert row["concurrent_mean"] <= row["concurrent_peak"]
        assert set(row["preemptions"]) == {"recomputed", "swapped"}
    assert read["trace"]["tokens"] == sum(arrival.final for arrival in small.trace())
    assert read["slots"] == 1500
    assert read["page_tokens"] == [16]


def test_table_and_picture_show_every_system(result: dict[str, object]) -> None:
    assert make_table(result).row_count == 4
    svg = draw(result)
    assert svg == draw(result)
    for text in ("Max", "Pow2", "Oracle", "kvik", *(name for _, name, _ in PARTS)):
        assert f">{text}<" in svg


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(CapacityError, match=r"a block of 256: give --memory 256\.0 KiB or more"):
        measure(small.setting(slots=255), small.trace())
    with pytest.raises(KvikError, match="request 2 of the trace needs 257 tokens"):
        measure(small.setting(), [Arrival(0.0, 1, 1), Arrival(0.0, 200, 58)])


def test_a_trace_in_which_nothing_waits_for_long() -> None:
    setting, trace = small.setting(), (Arrival(0.0, 5, 3),)
    for row in document(setting, trace, measure(setting, trace))["systems"]:
        assert row["steps"] == row["concurrent_mean"] == row["concurrent_peak"] == 1
        assert sum(row["shares"].values()) == pytest.approx(1)


def test_the_page_shows_what_is_in_the_records() -> None:
    page = (ROOT / "docs" / "waste.md").read_text()
    records = [*map(json.loads, (ROOT / "bench/results/waste.jsonl").read_text().splitlines())]
    assert records[0]["env"]["commit"] in page
    for row in records[0]["systems"]:
        shares = " | ".join(f"{100 * share:.1f}" for share in row["shares"].values())
        assert f"\n| {row['system']} | {shares} |\n" in page
        done = f"{row['finished_in_time']}/{row['finished']} | {row['wait_seconds']:.1f}"
        cost = f"{sum(row['preemptions'].values())} | {row['recomputed_tokens']:,}"
        ran = f"{row['concurrent_mean']:.1f} | {row['concurrent_peak']}"
        assert f"\n| {row['system']} | {ran} | {done} | {cost} |\n" in page
    for record in records:
        trace, (oracle, kvik) = record["trace"], record["systems"][2:]
        shares = " | ".join(f"{100 * row['shares']['tokens']:.1f}" for row in (oracle, kvik))
        ran = " | ".join(f"{row['concurrent_mean']:.1f}" for row in (oracle, kvik))
        name = f"{trace['name']}, {trace['rate']:.0f} a second | `{record['recipe']}`"
        assert f"\n| {name} | {shares} | {ran} | {kvik['recomputed_tokens']:,} |\n" in page
