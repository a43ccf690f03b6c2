"""A layer's figures as plain numbers, as JSON holds them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kvik.evaluate.inspect.attention import QUANTILES, Attention
from kvik.evaluate.inspect.chosen import Chosen
from kvik.evaluate.inspect.observe import LayerFigures
from kvik.evaluate.inspect.stored import Stored, Stream, outliers

SPREAD = ("mean", *(f"p{round(100 * q)}" for q in QUANTILES))


def layer_facts(figures: LayerFigures) -> dict[str, Any]:
    """One entry of ``layers``; a part that does not apply is null and ``why`` has the reason."""
    spec = figures.spec
    return {
        "layer": figures.layer,
        "kind": spec.kind,
        "window": spec.window,
        "heads": spec.heads,
        "kv_heads": spec.kv_heads,
        "k_dim": spec.k_dim,
        "v_dim": spec.v_dim,
        "attention": figures.attention and _attention(figures.attention),
        "chosen": figures.chosen and _chosen(figures.chosen),
        "stored": figures.stored and _stored(figures.stored),
        "output_error": {way: _plain(x) for way, x in figures.coded.items()},
        "why": list(figures.why),
    }


def _attention(a: Attention) -> dict[str, Any]:
    return {
        "queries": a.queries,
        "seen": a.seen,
        "sink_queries": a.sink_queries,
        "sink": {str(n): _plain(x) for n, x in a.sink.items()},
        "needed": {
            f"{share:g}": {
                name: _plain(column) for name, column in zip(SPREAD, x.unbind(1), strict=True)
            }
            for share, x in a.needed.items()
        },
        "window": {str(w): _plain(x) for w, x in a.window.items()},
        "streaming": {str(w): _plain(x) for w, x in a.streaming.items()},
        "entropy": _plain(a.entropy),
    }


def _chosen(c: Chosen) -> dict[str, Any]:
    def kept(found: dict[str, dict[float, Tensor]]) -> dict[str, Any]:
        return {
            rule: {f"{budget:g}": _plain(x) for budget, x in each.items()}
            for rule, each in found.items()
        }

    return {
        "candidates": c.candidates,
        "kept": kept(c.kept),
        "beyond_sinks": kept(c.beyond),
        "pooled": {f"{budget:g}": _round(x) for budget, x in c.pooled.items()},
    }


def _stored(s: Stored) -> dict[str, Any]:
    return {
        "streams": {name: _stream(x) for name, x in s.streams.items()},
        "neighbours": {name: _plain(x) for name, x in s.neighbours.items()},
        "mean_key": {name: _plain(x) for name, x in s.mean_key.items()},
        "rank": s.rank,
        "width": s.width,
    }


def _stream(s: Stream) -> dict[str, Any]:
    return {
        "outlier": _plain(s.outlier),
        "outlier_channels": outliers(s.channels),
        "channels": [_plain(head) for head in s.channels],
        "mean_energy": _plain(s.steady),
        "min": _plain(s.least),
        "max": _plain(s.most),
        "std": _plain(s.std),
        "error_group": s.group,
        "error": {way: _plain(x) for way, x in s.errors.items()},
    }


def _plain(x: Tensor) -> list[float]:
    return [_round(value) for value in x.tolist()]


def _round(value: float) -> float:
    """Six digits: more would be noise, and the file is read by people too."""
    return float(f"{value:.6g}")
