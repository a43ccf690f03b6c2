"""The waste report as a table for the terminal and as a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from kvik.machine import human_bytes

# Part, its name, its colour (told apart in grey too).
PARTS = (
    ("tokens", "token states", "#4fae87"),
    ("reserved", "reserved", "#8fc1e3"),
    ("internal", "internal", "#f2b134"),
    ("external", "external", "#e0707f"),
    ("stranded", "stranded", "#9b7fb8"),
    ("leftover", "left over", "#c9c9c9"),
)


def title(result: Mapping[str, Any]) -> str:
    """What was measured, on one line."""
    return (
        f"{result['model']} with {result['recipe']}, {human_bytes(result['memory_bytes'])} of KV: "
        f"{result['slots']:,} tokens; {result['trace']['requests']:,} requests"
    )


def make_table(result: Mapping[str, Any]) -> Table:
    """One row a system: shares of the KV region in percent, then what that let it do.

    ``preempted`` counts times, ``recomputed`` the tokens that were computed again.
    """
    table = Table(title=Text(title(result)), title_justify="left")
    table.add_column("system", no_wrap=True)
    for name in (
        *(f"{name} %" for _, name, _ in PARTS),
        "at once",
        "peak",
        "in time",
        "wait s",
        "preempted",
        "recomputed",
    ):
        table.add_column(name, justify="right")
    for row in result["systems"]:
        shares = [f"{100 * row['shares'][part]:.1f}" for part, _, _ in PARTS]
        done = f"{row['finished_in_time']:,}/{row['finished']:,}"
        mean, wait = f"{row['concurrent_mean']:.1f}", f"{row['wait_seconds']:.1f}"
        times = f"{sum(row['preemptions'].values()):,}"
        again = f"{row['recomputed_tokens']:,}"
        counts = (mean, f"{row['concurrent_peak']}", done, wait, times, again)
        table.add_row(row["system"], *shares, *counts)
    return table


def draw(result: Mapping[str, Any]) -> str:
    """Stacked bars of the shares as SVG text; the same result gives the same text."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    rows = result["systems"]
    names = [f"{row['system']}\n{row['concurrent_mean']:.1f} at once" for row in rows]
    with matplotlib.rc_context({"svg.hashsalt": "kvik", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8.0, 4.2), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        bottom = [0.0] * len(rows)
        for part, name, colour in PARTS:
            heights = [100 * row["shares"][part] for row in rows]
            bars = axes.bar(names, heights, 0.62, bottom, color=colour, label=name)
            labels = [f"{height:.1f}" if height >= 4 else "" for height in heights]
            axes.bar_label(bars, labels, label_type="center", fontsize=9)
            bottom = [b + height for b, height in zip(bottom, heights, strict=True)]
        axes.set_ylabel("% of the KV region, averaged over time")
        axes.set_ylim(0, 100)
        axes.set_title(title(result), fontsize=10)
        axes.legend(
            *map(reversed, axes.get_legend_handles_labels()),
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            frameon=False,
        )
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
