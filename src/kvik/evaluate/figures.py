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
    """One column of the table: its head, what it means, and how a result is written."""

    head: str
    meaning: str
    write: Callable[[Result], str]


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


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


COLUMNS = (
    Column("KV bytes", "bytes of K and V after the context, planned and allocated", _exact_bytes),
    Column(
        "bytes/token",
        "KV bytes for each token of context",
        lambda r: f"{r['bytes_per_token']:,.0f}",
    ),
    Column(
        "KL",
        "KL(full || this) in nats, mean over the scored tokens",
        lambda r: kl_text(r["kl_mean"]),
    ),
    Column("KL p99", "its 99th percentile", lambda r: kl_text(r["kl_p99"])),
    Column(
        "top-1", "how often the likeliest token is the full cache's", lambda r: f"{r['top1']:.3f}"
    ),
    Column("ppl", "perplexity of the text", lambda r: f"{r['ppl']:.2f}"),
    Column(
        "needles",
        "five-digit numbers found at depths of 10, 50 and 90 %",
        lambda r: f"{r['needle_hits']}/{r['needle_total']}",
    ),
    Column(
        "prefill tok/s", "tokens per second over the context", lambda r: _rate(r["prefill_tok_s"])
    ),
    Column(
        "decode tok/s", "tokens per second, one by one after it", lambda r: _rate(r["decode_tok_s"])
    ),
    Column(
        "peak RSS",
        "most memory of the process, weights included",
        lambda r: human_bytes(r["peak_rss_bytes"]),
    ),
)
