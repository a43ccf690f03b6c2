"""How the figures of a comparison are named and written, in the terminal and in the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvik.machine import human_bytes

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column of the table: its head, what it means, and how a result is written.

    ``change`` writes what a figure (``key``) differs by from that of a baseline.
    """

    head: str
    meaning: str
    write: Callable[[Result], str]
    key: str
    change: Callable[[float, Result], str]

    def changed(self, result: Result) -> str:
        """The difference to the baseline's figure: empty where there is none to compare with."""
        value = (result.get("change") or {}).get(self.key)
        if value is None:
            return ""
        return "=" if value == 0 else self.change(value, result)


def _signed(value: float, text: str) -> str:
    return f"{'−' if value < 0 else '+'}{text}"


def _bytes_change(value: float, _: Result) -> str:
    return _signed(value, human_bytes(abs(value)))


def _count_change(value: float, _: Result) -> str:
    return _signed(value, f"{abs(value):,.0f}")


def _kl_change(value: float, _: Result) -> str:
    return _signed(value, kl_text(abs(value)))


def _fixed_change(digits: int) -> Callable[[float, Result], str]:
    return lambda value, _: _signed(value, fixed_text(abs(value), digits))


def _share_change(key: str) -> Callable[[float, Result], str]:
    """In percent of the baseline's figure: speeds and peaks are never quite the same."""

    def write(value: float, result: Result) -> str:
        before = result[key] - value
        return _signed(value, f"{abs(value / before):.0%}" if before else "new")

    return write


def _exact_bytes(result: Result) -> str:
    text = human_bytes(result["measured_bytes"])
    if result["planned_bytes"] != result["measured_bytes"]:
        text += f" (planned {human_bytes(result['planned_bytes'])})"
    return text


def kl_text(value: float) -> str:
    """Nats, with the digits that tell recipes apart: 4.1e-05, 0.0156, 1.99."""
    if value == 0:
        return "0"
    if value < 1e-4:
        return f"{value:.1e}"
    digits = max(2, 1 - math.floor(math.log10(value)))
    return f"{value:.{digits}f}"


def fixed_text(value: float, digits: int) -> str:
    """So many decimals; of a number that no table has room for the order of magnitude."""
    return f"{value:.{digits}f}" if value < 1e6 else f"{value:.1e}"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


COLUMNS = (
    Column(
        "KV bytes",
        "bytes of K and V after the context, planned and allocated",
        _exact_bytes,
        "measured_bytes",
        _bytes_change,
    ),
    Column(
        "bytes/token",
        "KV bytes for each token of context",
        lambda r: f"{r['bytes_per_token']:,.0f}",
        "bytes_per_token",
        _count_change,
    ),
    Column(
        "KL",
        "KL(full || this) in nats, mean over the scored tokens",
        lambda r: kl_text(r["kl_mean"]),
        "kl_mean",
        _kl_change,
    ),
    Column("KL p99", "its 99th percentile", lambda r: kl_text(r["kl_p99"]), "kl_p99", _kl_change),
    Column(
        "top-1",
        "how often the likeliest token is the full cache's",
        lambda r: f"{r['top1']:.3f}",
        "top1",
        _fixed_change(3),
    ),
    Column(
        "ppl", "perplexity of the text", lambda r: fixed_text(r["ppl"], 2), "ppl", _fixed_change(2)
    ),
    Column(
        "needles",
        "five-digit numbers found, of all that were hidden (see the needle maps)",
        lambda r: f"{r['needle_hits']}/{r['needle_total']}",
        "needle_hits",
        _count_change,
    ),
    Column(
        "prefill tok/s",
        "tokens per second over the context",
        lambda r: _rate(r["prefill_tok_s"]),
        "prefill_tok_s",
        _share_change("prefill_tok_s"),
    ),
    Column(
        "decode tok/s",
        "tokens per second, one by one after it",
        lambda r: _rate(r["decode_tok_s"]),
        "decode_tok_s",
        _share_change("decode_tok_s"),
    ),
    Column(
        "peak RSS",
        "most memory of the process, weights included",
        lambda r: human_bytes(r["peak_rss_bytes"]),
        "peak_rss_bytes",
        _share_change("peak_rss_bytes"),
    ),
)
