"""A comparison as CSV files for a spreadsheet: one row a recipe, a needle, a point of a curve."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvik.evaluate.compare import FIGURES

Row = Sequence[Any]


def sheets(comparison: Mapping[str, Any]) -> dict[str, str]:
    """Names of files and their text; figures that are not there are empty cells."""
    return {
        "figures.csv": to_csv(_figures(comparison)),
        "needles.csv": to_csv(_needles(comparison)),
        "curves.csv": to_csv(_curves(comparison)),
    }


def _figures(comparison: Mapping[str, Any]) -> Iterable[Row]:
    keys = (*FIGURES, "outgrows_weights_at", "table_bytes")
    changed = comparison["results"] if "baseline" in comparison else []
    names = list(dict.fromkeys(key for r in changed for key in r["change"] or ()))
    yield ("recipe", *keys, *(f"change_{name}" for name in names), "error")
    for result in comparison["results"]:
        change = result.get("change") or {}
        found = [result[key] for key in keys] + [change.get(name) for name in names]
        yield (result["recipe"], *found, result.get("error"))


def _needles(comparison: Mapping[str, Any]) -> Iterable[Row]:
    yield "recipe", "length", "depth", "counted", "hit", "logprob"
    asked = comparison["needle"]
    for result in comparison["results"]:
        told = result["needle_cells"] or []
        # A recipe that failed has none.
        for cell, counted, got in zip(asked["cells"], asked["counted"], told, strict=False):
            hit, logprob = int(got["hit"]), got["logprob"]
            yield result["recipe"], cell["length"], cell["depth"], int(counted), hit, logprob


def _curves(comparison: Mapping[str, Any]) -> Iterable[Row]:
    """``planned_bytes`` and ``decode_tok_s`` by context, ``layer_bytes`` by layer."""
    yield "recipe", "figure", "at", "value"
    at = {
        "planned_bytes": ("growth_bytes", comparison["growth"]["contexts"]),
        "decode_tok_s": ("decode_curve", comparison["speed"]["contexts"]),
    }
    for result in comparison["results"]:
        layers = range(len(result["layer_bytes"] or ()))
        for name, (key, xs) in (at | {"layer_bytes": ("layer_bytes", layers)}).items():
            for x, value in zip(xs, result[key] or (), strict=False):
                yield result["recipe"], name, x, value


def to_csv(rows: Iterable[Row]) -> str:
    """Lines of a CSV file, each value safe to open in a spreadsheet."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula is kept from it."""
    return (
        f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
    )
