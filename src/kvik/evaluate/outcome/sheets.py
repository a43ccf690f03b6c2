"""An evaluation as CSV: one line a figure row, and one a cell of a map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvik.evaluate.sheets import Row, to_csv

FIGURES = (
    "units", "kv_bytes", "tokens", "kl", "kl_median", "kl_p99", "kl_max", "top1", "ppl",
    "ppl_ratio", "dp_rms", "slope", "cells", "cells_hit", "cells_scored", "hits", "asked", "logp",
    "retention", "noise",
)  # fmt: skip


def sheets(result: Mapping[str, Any]) -> dict[str, str]:
    """Files by name; estimates have a column for each end of their interval."""
    return {"figures.csv": to_csv(_figures(result)), "maps.csv": to_csv(_maps(result))}


def _figures(result: Mapping[str, Any]) -> Iterable[Row]:
    estimates = {"kl", "slope", "retention"}
    head: list[Any] = ["task", "context", "recipe"]
    for name in FIGURES:
        head += [name, f"{name}_low", f"{name}_high"] if name in estimates else [name]
    yield head
    for row in result["rows"]:
        line: list[Any] = [row["task"], row["context"], row["recipe"]]
        for name in FIGURES:
            value = row.get(name)
            if name in estimates:
                line += [None] * 3 if value is None else list(value.values())
            else:
                line.append(value)
        yield line


def _maps(result: Mapping[str, Any]) -> Iterable[Row]:
    yield ["task", "context", "recipe", "at", "samples", "hits", "retention", "logp"]
    for row in result["rows"]:
        for cell in row.get("map", ()):
            what = [cell[name] for name in ("at", "samples", "hits", "retention", "logp")]
            yield [row["task"], row["context"], row["recipe"], *what]
