"""Decode and prefill times as a table for the terminal and as a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from kvik.bench.serving_picture import COLOURS
from kvik.machine import human_bytes


def title(result: Mapping[str, Any]) -> str:
    """What was measured, on one line."""
    read = ", ".join(f"{one['best']:.1f} with {one['threads']}" for one in result["read_gb_s"])
    return f"{result['bench']} of {result['model']}; plain reads reach {read} threads, GB/s"


def make_table(result: Mapping[str, Any]) -> Table:
    """One row a run: a step in ms (a prompt in prefill) with its spread, and what it read."""
    decode = result["bench"] == "decode"
    table = Table(title=Text(title(result)), title_justify="left")
    table.add_column("recipe", no_wrap=True)
    heads = ["context", "batch", "ms", "least", "most", "ms/token", "tok/s", "K and V", "GB/s"]
    heads += ["floor ms", "x floor", "attention ms", "GB/s"] if decode else []
    for head in heads:
        table.add_column(head, justify="right")
    for run in result["runs"]:
        ms = run["ms"]
        cells = [f"{run['context']:,}", f"{run['batch']}"]
        cells += [f"{ms[key]:,.1f}" for key in ("median", "least", "most")]
        cells += [f"{run['ms_token']:.2f}", f"{run['tokens_s']:,.1f}"]
        cells += [human_bytes(run["kv_bytes"]), f"{run['gb_s']:.1f}"]
        if decode:
            cells += [f"{run['floor_ms']:.1f}", f"{run['over_floor']:.2f}"]
            cells += [f"{run['attend_ms']['median']:.1f}", f"{run['attend_gb_s']:.1f}"]
        table.add_row(Text(run["recipe"]), *cells)
    return table


def draw(result: Mapping[str, Any]) -> str:
    """Time and bandwidth against context as SVG text, one line a recipe and batch."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    series: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for run in sorted(result["runs"], key=lambda run: run["context"]):
        series.setdefault((run["recipe"], run["batch"]), []).append(run)
    recipes = list(dict.fromkeys(run["recipe"] for run in result["runs"]))
    batches = list(dict.fromkeys(run["batch"] for run in result["runs"]))
    with matplotlib.rc_context({"svg.hashsalt": "kvik", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9.0, 4.2), layout="constrained")
        FigureCanvasSVG(figure)
        time, read = figure.subplots(1, 2)
        for (recipe, batch), runs in series.items():
            contexts = [run["context"] for run in runs]
            style = {
                "color": COLOURS[recipes.index(recipe) % len(COLOURS)],
                "marker": "osD^v"[batches.index(batch) % 5],
                "markersize": 4,
            }
            label = f"{recipe}, batch {batch}"
            time.plot(contexts, [run["ms_token"] for run in runs], label=label, **style)
            if "floor_ms" in runs[0]:
                floors = [run["floor_ms"] / run["batch"] for run in runs]
                time.plot(contexts, floors, ls=":", **style)
            read.plot(contexts, [run["gb_s"] for run in runs], **style)
        most = result["read_gb_s"][-1]["best"]
        read.axhline(most, color="#777777", ls="--", lw=1)
        read.annotate("plain read loop", (0.02, most), xycoords=("axes fraction", "data"), size=8)
        time.set_title("ms a token (dotted: floor)", fontsize=10)
        read.set_title("bytes that had to be read, GB/s", fontsize=10)
        for axes in (time, read):
            axes.set_xlabel("tokens of context", fontsize=9)
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
        figure.suptitle(title(result), fontsize=10)
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
