"""Rows from cells: what counts, what is paired, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kvik.evaluate.outcome.summary import summarize


def cell(task: str, sample: int, recipe: str, values: Any, *, repeat: bool = False) -> Any:
    where = {"context": 100, "sample": sample}
    values = {"kv_bytes": 10, **values}
    return {
        "task": task, "unit": f"u{sample}", "where": where, "recipe": recipe,
        "repeat": repeat, "values": values,
    }  # fmt: skip


def item(at: float, logp: float, hit: float, floor: float | None = None) -> dict[str, float]:
    found = {"at": at, "logp": logp, "hit": hit}
    return found if floor is None else found | {"floor": floor}


def needles() -> list[Any]:
    """Depth .1 is found, .5 is likely and not found, .9 is as unlikely as without the context."""
    dense = [item(0.1, -1, 1, -11), item(0.5, -4, 0, -14), item(0.9, -9, 0, -10)]
    ours = [item(0.1, -3, 0), item(0.5, -9, 0), item(0.9, -9, 0)]
    return [
        cell("needle", 0, "fp32", {"items": dense}),
        cell("needle", 1, "fp32", {"items": dense}),
        cell("needle", 0, "int4", {"items": ours}),
        cell("needle", 1, "int4", {"items": [item(0.1, -1, 1), item(0.5, -4, 0), item(0.9, 0, 1)]}),
    ]


def test_only_what_the_dense_cache_can_do_counts() -> None:
    dense, ours = summarize(needles(), ["int4"])
    assert (dense["cells"], dense["cells_hit"], dense["cells_scored"]) == (3, 1, 2)
    assert (dense["hits"], dense["asked"]) == (2, 2)
    assert dense["retention"]["value"] == 1
    assert (ours["hits"], ours["asked"]) == (1, 2)
    assert ours["retention"]["value"] == pytest.approx((8 + 5 + 10 + 10) / 40)
    assert [c["retention"] for c in ours["map"]] == [0.9, 0.75, None]
    assert [c["hits"] for c in ours["map"]] == [0.5, None, None]


def test_a_text_that_the_dense_cache_hardly_answers_leaves_no_interval() -> None:
    """Its cell counts by the mean; drawn alone it would be divided by next to nothing."""
    cells = [
        cell("needle", n, recipe, {"items": [item(0.5, logp, 1, floor)]})
        for n, floor in enumerate((-11.0, -1.1))
        for recipe, logp in (("fp32", -1.0), ("int4", -2.0))
    ]
    kept = summarize(cells, ["int4"])[1]["retention"]
    assert kept["value"] == pytest.approx((9 - 0.9) / 10.1)
    assert (kept["low"], kept["high"]) == (None, None)


def test_what_counts_is_judged_by_the_texts_of_the_row() -> None:
    """A text that failed for one recipe is out of the row, and of what its cells are judged by."""
    cells = [
        cell("needle", n, "fp32", {"items": [item(0.5, -1, float(n == 0), -11)]}) for n in range(4)
    ]
    cells.append(cell("needle", 0, "int4", {"items": [item(0.5, -1, 1)]}))
    for row in summarize(cells, ["int4"]):
        assert (row["units"], row["cells_hit"], row["hits"], row["asked"]) == (1, 1, 1, 1)


def test_a_perplexity_beyond_all_numbers_stays_a_number() -> None:
    values = {"kl": [1.0] * 32, "agree": [0] * 32}
    cells = [
        cell("kl", 0, "fp32", {**values, "nll": [5.0] * 32}),
        cell("kl", 0, "int4", {**values, "nll": [800.0] * 32}),
    ]
    _, ours = summarize(cells, ["int4"])
    assert 1e300 < ours["ppl_ratio"] <= ours["ppl"] < math.inf


def test_differences_are_paired_and_signed() -> None:
    dense, ours = summarize(needles(), ["int4"])
    assert ours["against"]["fp32"]["value"] == pytest.approx(-7 / 4)
    assert dense["against"]["int4"]["value"] == pytest.approx(7 / 4)


def test_a_cell_needs_nine_of_ten_hits() -> None:
    cells = [
        cell("needle", n, "fp32", {"items": [item(0.1, -1, float(n != 0), -11)]}) for n in range(9)
    ]
    assert summarize(cells, [])[0]["cells_hit"] == 0  # 8 of 9
    assert summarize(cells[1:], [])[0]["cells_hit"] == 1


def test_streams_give_the_means_of_their_tokens() -> None:
    kl, nll, full = [0.0] * 32 + [0.2] * 32, [2.0] * 64, [1.5] * 64
    agree = [1] * 48 + [0] * 16
    cells = [
        cell("kl", 0, "fp32", {"kl": [0.0] * 64, "nll": full, "agree": [1] * 64}),
        cell("kl", 0, "int4", {"kl": kl, "nll": nll, "agree": agree}),
        cell("kl", 0, "fp32", {"kl": [1e-9] * 64, "nll": full, "agree": [1] * 64}, repeat=True),
    ]
    row = summarize(cells, ["int4"])[1]
    assert row["kl"]["value"] == pytest.approx(0.1)
    assert (row["kl"]["low"], row["kl"]["high"] > 0.2) == (0.0, True), "two blocks tell little"
    assert (row["top1"], row["tokens"]) == (0.75, 64)
    assert row["ppl_ratio"] == pytest.approx(math.exp(0.5))
    assert row["dp_rms"] == pytest.approx(math.exp(-1.5) - math.exp(-2))
    assert row["noise"] == pytest.approx(1e-9)


def test_the_order_of_cells_does_not_matter() -> None:
    assert summarize(needles()[::-1], ["int4"]) == summarize(needles(), ["int4"])


def test_a_recipe_without_its_dense_unit_is_left_out() -> None:
    rows = summarize(needles()[2:], ["int4"])
    assert rows == []


def test_a_mean_over_tokens_is_one_where_the_last_block_is_short() -> None:
    kl = [0.1] * 32 + [0.9]
    dense = {"kl": [0.0] * 33, "nll": [1.0] * 33, "agree": [1] * 33}
    cells = [
        cell("kl", 0, "fp32", dense),
        cell("kl", 0, "int4", {**dense, "kl": kl}),
    ]
    row = summarize(cells, ["int4"])[1]
    assert row["kl"]["value"] == pytest.approx(np.mean(kl))
    assert row["against"]["fp32"]["value"] == pytest.approx(np.mean(kl))


def test_one_answer_near_its_floor_does_not_outweigh_the_others() -> None:
    dense = [(-1, -13), (-2, -12), (-9, -8.9)]
    cells = [
        cell("multikey", n, "fp32", {"items": [item(n, logp, 1, floor)]})
        for n, (logp, floor) in enumerate(dense)
    ]
    cells += [
        cell("multikey", n, "int4", {"items": [item(n, logp, 1)]})
        for n, logp in enumerate([-1, -2, -11])
    ]
    full, ours = summarize(cells, ["int4"])
    assert full["retention"]["value"] == 1
    assert ours["retention"]["value"] == pytest.approx((12 + 10 - 2.1) / (12 + 10 - 0.1))


def test_answers_of_one_text_are_one_part() -> None:
    """Five depths of one text say no more of other texts than that one text does."""
    items = [item(d / 10, -1, 1, -11) for d in range(5)]
    cells = [cell("needle", n, "fp32", {"items": items}) for n in range(2)]
    lost = [item(d / 10, -3, 1) for d in range(5)]
    cells += [cell("needle", 0, "int4", {"items": items})]
    cells += [cell("needle", 1, "int4", {"items": lost})]
    kept = summarize(cells, ["int4"])[1]["retention"]
    assert kept["value"] == pytest.approx(0.9)
    assert kept["low"] < 0.5, "two texts"


def test_rows_are_over_the_same_texts_where_a_cell_failed() -> None:
    dense = {"kl": [0.0] * 32, "nll": [1.0] * 32, "agree": [1] * 32}
    cells = [cell("kl", n, "fp32", dense) for n in range(2)]
    cells += [cell("kl", n, "int8", {**dense, "kl": [0.1 * (n + 1)] * 32}) for n in range(2)]
    cells += [cell("kl", 0, "int4", {**dense, "kl": [0.5] * 32})]
    rows = {row["recipe"]: row for row in summarize(cells, ["int8", "int4"])}
    assert {row["units"] for row in rows.values()} == {1}
    assert rows["int8"]["kl"]["value"] == pytest.approx(0.1)
