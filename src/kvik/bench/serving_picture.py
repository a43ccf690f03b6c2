"""A load test as a table for the terminal and as a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from kvik.machine import human_bytes

COLOURS = ("#3b6fb6", "#4fae87", "#f2b134", "#e0707f", "#9b7fb8", "#7a5c3e", "#5fb7c9")
HEADS = (
    "offered/s", "done", "tok/s", "req/s", "first s", "p50", "p90", "p99", "between s", "p50",
    "p99", "at once", "peak", "preempted", "hit tok", "KV peak", "equal",
)  # fmt: skip


def name(run: Mapping[str, Any]) -> str:
    """What ran: a recipe of kvik, or the peer."""
    return run["system"] if run["recipe"] is None else f"kvik {run['recipe']}"


def title(result: Mapping[str, Any]) -> str:
    """What was measured, on one line."""
    trace = result["trace"]
    return (
        f"{result['model']}, {human_bytes(result['memory_bytes'])} of KV: {trace['requests']:,} "
        f"requests of {trace['prompt_mean']:.1f} tokens in, {trace['output_mean']:.1f} out"
    )


def make_table(result: Mapping[str, Any]) -> Table:
    """One row a run. Seconds to the first token and between tokens: mean, then percentiles."""
    table = Table(title=Text(title(result)), title_justify="left", padding=(0, 0))
    table.add_column("system", no_wrap=True)
    for head in HEADS:
        table.add_column(head, justify="right")
    for run in result["runs"]:
        equal = run.get("agreement", {}).get("equal")
        table.add_row(
            Text(name(run)),
            f"{run['rate']:g}",
            f"{run['completed']}/{run['requests']}",
            f"{run['tokens_s']:.1f}",
            f"{run['requests_s']:.2f}",
            *_times(run["ttft"], "mean", "p50", "p90", "p99"),
            *_times(run["itl"], "mean", "p50", "p99"),
            f"{run['concurrent_mean']:.1f}",
            str(run["concurrent_peak"]),
            str(run["preemptions"]),
            str(run["prefix_tokens"]),
            human_bytes(run["peak_bytes"]),
            "" if equal is None else f"{100 * equal:.0f}%",
            end_section=run is not result["runs"][-1] and _last_of_rate(result["runs"], run),
        )
    return table


def _last_of_rate(runs: list[Mapping[str, Any]], run: Mapping[str, Any]) -> bool:
    return [r for r in runs if r["rate"] == run["rate"]][-1] is run


def _times(found: Mapping[str, float] | None, *which: str) -> list[str]:
    return ["-" if found is None else f"{found[one]:.2f}" for one in which]


def draw(result: Mapping[str, Any]) -> str:
    """Four pictures against offered load as SVG text; the same result gives the same text."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    series: dict[str, list[Mapping[str, Any]]] = {}
    for run in sorted(result["runs"], key=lambda run: run["rate"]):
        series.setdefault(name(run), []).append(run)
    with matplotlib.rc_context({"svg.hashsalt": "kvik", "svg.fonttype": "none"}):
        figure = Figure(figsize=(9.0, 6.4), layout="constrained")
        FigureCanvasSVG(figure)
        ((speed, at_once), (first, between)) = figure.subplots(2, 2)
        for index, (label, runs) in enumerate(series.items()):
            rates, colour = [run["rate"] for run in runs], COLOURS[index % len(COLOURS)]
            style = {"color": colour, "marker": "o", "markersize": 4}
            speed.plot(rates, [run["tokens_s"] for run in runs], label=label, **style)
            at_once.plot(rates, [run["concurrent_peak"] for run in runs], **style)
            at_once.plot(rates, [run["concurrent_mean"] for run in runs], ls=":", **style)
            for axes, key in ((first, "ttft"), (between, "itl")):
                for share, line in (("p50", "-"), ("p99", "--")):
                    times = [run[key] and run[key][share] for run in runs]
                    known = [(r, t) for r, t in zip(rates, times, strict=True) if t is not None]
                    axes.plot([r for r, _ in known], [t for _, t in known], ls=line, **style)
        speed.set_title("generated tokens a second", fontsize=10)
        at_once.set_title("requests at once: peak (solid), mean (dotted)", fontsize=10)
        first.set_title("seconds to the first token: p50 (solid), p99 (dashed)", fontsize=10)
        between.set_title("seconds between tokens: p50 (solid), p99 (dashed)", fontsize=10)
        for axes in (speed, at_once, first, between):
            axes.set_xlabel("offered load, requests a second", fontsize=9)
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
        figure.suptitle(title(result), fontsize=10)
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
