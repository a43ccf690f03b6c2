"""Intervals against what is known of them."""

from __future__ import annotations

import numpy as np
import pytest

from kvik.evaluate.statistics import blocks, mean, ratio, slope, student


@pytest.mark.parametrize("count", [2, 3, 4, 6, 10, 16, 40])
def test_an_interval_holds_the_mean_about_as_often_as_it_says(count: int) -> None:
    draw = np.random.default_rng(3)
    found = [mean(draw.normal(2.0, 1.0, count)) for _ in range(300)]
    share = np.mean([not estimate.excludes(2.0) for estimate in found])
    assert 0.92 <= share <= 0.99


def test_a_width_is_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(5).normal(size=400)
    found = mean(values)
    assert found.low is not None
    assert found.high is not None
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)
    assert found.value == pytest.approx(values.mean())


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (11, 2.201), (15, 2.131), (60, 2.0003)]
)
def test_students_quantiles_are_the_tables(freedom: int, quantile: float) -> None:
    assert student(freedom) == pytest.approx(quantile, abs=3e-3)


def test_a_ratio_is_of_the_sums() -> None:
    parts = np.asarray([[1.0, 10.0], [3.0, 2.0], [0.8, 12.0]])
    assert ratio(parts).value == pytest.approx(0.2)


def test_a_ratio_over_next_to_nothing_has_no_interval() -> None:
    """One text with all of the denominator: drawn twice the other, the ratio is anything."""
    parts = np.asarray([[5.3, 7.32], [0.1, -0.03]])
    found = ratio(parts, 0.2)
    assert (found.low, found.high) == (None, None)
    assert found.value == pytest.approx(5.4 / 7.29)
    assert ratio(parts).low is None, "a draw divides by less than nothing"
    even = np.asarray([[5.3, 7.32], [4.1, 6.0]])
    assert ratio(even, 0.2) == ratio(even)
    assert ratio(even).low is not None


def test_an_interval_ends_where_a_figure_cannot_go() -> None:
    wide = mean([0.001, 0.002, 0.03])
    assert wide.low is not None
    assert wide.low < 0
    assert wide.above(0.0).low == 0.0
    assert wide.above(0.0).high == wide.high
    assert mean([1.5]).above(0.0).low is None


def test_skewed_figures_are_held_less_often_than_is_said() -> None:
    """What docs/eval.md says of lognormal figures."""
    draw, true = np.random.default_rng(3), float(np.exp(0.5))
    for count in (3, 5, 10, 30):
        found = [mean(draw.lognormal(0.0, 1.0, count)) for _ in range(1000)]
        share = np.mean([not estimate.excludes(true) for estimate in found])
        assert 0.79 <= share <= 0.91


def test_one_value_has_no_interval() -> None:
    found = mean([1.5])
    assert (found.value, found.low, found.high) == (1.5, None, None)
    assert not found.excludes(0.0)


def test_a_slope_is_found_and_no_slope_is_not() -> None:
    draw, at = np.random.default_rng(7), np.arange(60.0)
    steep = slope(at, 0.2 * at + draw.normal(size=60))
    assert steep.value == pytest.approx(0.2, abs=0.03)
    assert steep.excludes(0.0)
    assert not slope(at, draw.normal(size=60)).excludes(0.0)


def test_blocks_are_sums_of_neighbours() -> None:
    assert blocks([1, 3, 5, 7, 9], 2).tolist() == [[4, 2], [12, 2], [9, 1]]
