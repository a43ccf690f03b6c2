"""A heat map in nine steps; cells without a value are hatched and called not counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvik.evaluate.pictures.axis import number
from kvik.evaluate.pictures.palette import CARD, GRID, HEAT, ON_LITTLE, ON_MUCH
from kvik.evaluate.pictures.picture import Picture, canvas
from kvik.evaluate.pictures.words import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = Sequence[Sequence[float | None]]
_TICKS = 8


def step(value: float, low: float, high: float) -> int:
    """Which of the steps from ``low`` to ``high`` a value falls in, from 0."""
    share = (value - low) / (high - low) if high > low else 0.0
    return min(len(HEAT) - 1, max(0, int(share * len(HEAT))))


def draw_heat(
    name: str,
    title: str,
    description: str,
    rows: Sequence[str],
    columns: Sequence[str],
    values: Values,
    *,
    row_label: str,
    column_label: str,
    low: float | None = None,
    high: float | None = None,
    write: Callable[[float], str] = number,
    texts: Sequence[Sequence[str]] | None = None,
    key: str = "",
    missing: str = "not counted",
) -> Picture:
    """``values[r][c]`` (None: not counted) for ``rows`` from the top and ``columns``.

    Colours run from ``low`` to ``high`` (those of the values unless given). Cells bear ``texts``,
    or what ``write`` makes of their values, where there is room; elsewhere the key below,
    labelled ``key``, tells the values. ``write`` also writes the key.
    """
    known = [v for row in values for v in row if v is not None and math.isfinite(v)]
    least = min(known, default=0.0) if low is None else low
    most = max(known, default=1.0) if high is None else high
    cell = min(40.0, max(4.0, 300 / max(len(rows), 1)))
    height = int(120 + cell * len(rows) + 30)
    gap = any(v is None or not math.isfinite(v) for row in values for v in row)
    with canvas(title, height=height) as (figure, axes):
        _cells(axes, values, least, most)
        roomy = len(columns) <= 8 and len(rows) <= 16
        if texts is not None or roomy:
            _texts(axes, values, texts, write, least, most)
        axes.set_xlim(0, len(columns))
        axes.set_ylim(len(rows), 0)
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
        at = range(0, len(columns), max(1, -(-len(columns) // _TICKS)))
        axes.set_xticks([c + 0.5 for c in at], [short(columns[c], 12) for c in at])
        at = range(0, len(rows), max(1, -(-len(rows) // (2 * _TICKS))))
        axes.set_yticks([r + 0.5 for r in at], [short(rows[r], 22) for r in at])
        axes.set_xlabel(short(column_label, 40))
        axes.set_ylabel(short(row_label, 30))
        _key(figure, least, most, write, key, missing if gap else None)
    return Picture(name, title, description, figure)


def _cells(axes: Axes, values: Values, low: float, high: float) -> None:
    """One path for each step, so that a map of many cells stays a small file."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    boxes: dict[int, list[Path]] = {}
    for r, row in enumerate(values):
        for c, value in enumerate(row):
            known = value is not None and math.isfinite(value)
            which = step(value, low, high) if known and value is not None else -1
            corners = [(c, r), (c + 1, r), (c + 1, r + 1), (c, r + 1), (c, r)]
            boxes.setdefault(which, []).append(Path(corners, closed=True))
    many = max(len(values), max((len(row) for row in values), default=0)) > 32
    for which, paths in sorted(boxes.items()):
        colour = CARD.light if which < 0 else HEAT[which].light
        axes.add_patch(
            PathPatch(
                Path.make_compound_path(*paths),
                facecolor=colour,
                edgecolor=colour if many else GRID.light,
                linewidth=0.2 if many else 0.8,
                hatch="////" if which < 0 else None,
            )
        )


def _texts(
    axes: Axes,
    values: Values,
    texts: Sequence[Sequence[str]] | None,
    write: Callable[[float], str],
    low: float,
    high: float,
) -> None:
    for r, row in enumerate(values):
        for c, value in enumerate(row):
            if value is None or not math.isfinite(value):
                continue
            much = step(value, low, high) > len(HEAT) // 2
            text = write(value) if texts is None else texts[r][c]
            axes.text(
                c + 0.5,
                r + 0.5,
                short(text, 12),
                ha="center",
                va="center",
                fontsize=11,
                color=(ON_MUCH if much else ON_LITTLE).light,
            )


def _key(
    figure: Figure,
    low: float,
    high: float,
    write: Callable[[float], str],
    label: str,
    missing: str | None,
) -> None:
    from matplotlib.patches import Patch

    span = (high - low) / len(HEAT)
    picks = (0, len(HEAT) // 2, len(HEAT) - 1)
    told = {0: low, len(HEAT) // 2: (low + high) / 2, len(HEAT) - 1: high}
    handles = [
        Patch(facecolor=HEAT[i].light, edgecolor=GRID.light, label=write(told[i])) for i in picks
    ]
    if span == 0:
        handles = handles[:1]
    if missing is not None:
        handles.append(
            Patch(facecolor=CARD.light, edgecolor=GRID.light, hatch="////", label=missing)
        )
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=len(handles),
        title=short(label, 50) or None,
        title_fontsize=11,
        alignment="left",
        handlelength=1.2,
        columnspacing=1.2,
    )
