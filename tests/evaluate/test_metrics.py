"""Metrics agree with their definitions, block by block or all at once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kvik.errors import KvikError
from kvik.evaluate.metrics import log_softmax, score, summarize


def test_kl_of_two_known_distributions() -> None:
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.25, 0.5, 0.25])
    rows = score(np.log(p)[None], np.log(q)[None] + 7.0, np.array([1]))
    assert rows.kl[0] == pytest.approx(0.25 * math.log(2))
    assert rows.nll[0] == pytest.approx(math.log(2))
    assert not rows.agree[0]


def test_equal_logits_are_exactly_equal() -> None:
    logits = np.random.default_rng(0).normal(size=(70, 300)).astype(np.float32) * 10
    quality = summarize(score(logits, logits.copy(), np.zeros(70, dtype=np.int64)))
    assert (quality.kl_mean, quality.kl_p99, quality.top1, quality.tokens) == (0.0, 0.0, 1.0, 70)


def test_blocks_change_nothing() -> None:
    draw = np.random.default_rng(1)
    full, ours = draw.normal(size=(2, 75, 50)).astype(np.float32)
    targets = draw.integers(0, 50, size=75)
    rows = score(full, ours, targets)
    lp, lq = log_softmax(full), log_softmax(ours)
    np.testing.assert_array_equal(rows.kl, (np.exp(lp) * (lp - lq)).sum(-1))
    np.testing.assert_array_equal(rows.nll, -lq[np.arange(75), targets])
    quality = summarize(rows)
    assert quality.kl_p99 == pytest.approx(np.quantile(rows.kl, 0.99))
    assert quality.ppl == pytest.approx(math.exp(rows.nll.mean()))


def test_large_logits_do_not_overflow() -> None:
    rows = score(np.array([[1e4, 0.0]]), np.array([[0.0, 1e4]]), np.array([0]))
    assert rows.kl[0] == pytest.approx(1e4)


def test_logits_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(KvikError, match="not finite"):
        score(np.zeros((1, 2)), np.array([[np.nan, 0.0]]), np.array([0]))
