"""Stretches of a line in rows, such as the positions that each layer still holds."""

from __future__ import annotations

from collections.abc import Sequence

from kvik.evaluate.pictures.axis import Axis, set_axes
from kvik.evaluate.pictures.palette import GRID, SERIES
from kvik.evaluate.pictures.picture import Picture, canvas
from kvik.evaluate.pictures.words import short

Span = tuple[float, float]


def draw_spans(
    name: str,
    title: str,
    description: str,
    rows: Sequence[str],
    spans: Sequence[Sequence[Span]],
    length: float,
    *,
    row_label: str,
    column_label: str,
) -> Picture:
    """``spans[r]`` are the half-open (start, end) that row r, from the top, has of 0..length."""
    cell = min(26.0, max(7.0, 220 / max(len(rows), 1)))
    with canvas(title, height=int(110 + cell * len(rows))) as (figure, axes):
        for row, parts in enumerate(spans):
            axes.broken_barh([(0, length)], (row + 0.15, 0.7), facecolors=GRID.light)
            axes.broken_barh(
                [(start, end - start) for start, end in parts],
                (row + 0.15, 0.7),
                facecolors=SERIES[0].light,
                edgecolors=SERIES[0].light,  # a few tokens of thousands still show
                linewidth=1.0,
            )
        set_axes(axes, Axis(column_label), Axis(row_label), ([0.0, length], [0.0, len(rows)]))
        axes.set_xlim(0, length)
        axes.set_ylim(len(rows), 0)
        at = range(0, len(rows), max(1, -(-len(rows) // 10)))
        axes.set_yticks([r + 0.5 for r in at], [short(rows[r], 22) for r in at])
        axes.tick_params(axis="y", length=0)
        axes.grid(False)
    return Picture(name, title, description, figure)
