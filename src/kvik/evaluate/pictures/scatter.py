"""Labelled points, and the front of those that no other beats on both axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvik.evaluate.pictures.axis import Axis, set_axes
from kvik.evaluate.pictures.palette import INK, SOFT, style
from kvik.evaluate.pictures.picture import HEIGHT, Picture, canvas, settle
from kvik.evaluate.pictures.words import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox


@dataclass(frozen=True)
class Point:
    """One labelled point; ``style`` keeps its look the same as in other pictures."""

    label: str
    x: float
    y: float
    style: int | None = None


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which (x, y) no other point beats: less or equal in both, less in one. By ascending x."""
    order = sorted(range(len(points)), key=lambda i: points[i])
    front: list[int] = []
    for i in order:
        x, y = points[i]
        if not front or y < points[front[-1]][1] or points[front[-1]] == (x, y):
            front.append(i)
    return front


def draw_scatter(
    name: str,
    title: str,
    description: str,
    points: Sequence[Point],
    x: Axis,
    y: Axis,
    *,
    front: bool = True,
) -> Picture:
    """A picture of ``points``; ``front`` joins those of :func:`pareto` (less is better on both)."""
    with canvas(title, height=HEIGHT + 40) as (figure, axes):
        at = [(x.place(p.x), y.place(p.y)) for p in points]
        if front and points:
            best = [at[i] for i in pareto([(p.x, p.y) for p in points])]
            axes.plot(
                [a for a, _ in best],
                [b for _, b in best],
                color=SOFT.light,
                linestyle="--",
                linewidth=1.2,
                drawstyle="steps-post",
            )
        for index, (point, (a, b)) in enumerate(zip(points, at, strict=True)):
            look = style(index if point.style is None else point.style, line=False)
            axes.plot([a], [b], linestyle="", markersize=8, **look)
        set_axes(axes, x, y, ([a for a, _ in at], [b for _, b in at]))
        _label(figure, axes, [short(p.label) for p in points], at)
    return Picture(name, title, description, figure)


# Where a label may stand: offset in points from the marker, horizontal and vertical alignment.
_PLACES = (
    (5, 4, "left", "bottom"),  # the front runs to the right and down
    (-5, -4, "right", "top"),
    (-5, 4, "right", "bottom"),
    (5, -4, "left", "top"),
    (8, 0, "left", "center"),
    (-8, 0, "right", "center"),
    (0, 8, "center", "bottom"),
    (0, -8, "center", "top"),
    (7, 18, "left", "bottom"),
    (7, -18, "left", "top"),
    (-7, 18, "right", "bottom"),
    (-7, -18, "right", "top"),
)


def _label(
    figure: Figure, axes: Axes, labels: Sequence[str], at: Sequence[tuple[float, float]]
) -> None:
    """Each label where it covers least: other labels, markers, or what is outside the axes."""
    from matplotlib.transforms import Bbox

    settle(figure)
    marks = [axes.transData.transform(point) for point in at]
    taken = [Bbox.from_bounds(a - 5, b - 5, 10, 10) for a, b in marks]
    inside = axes.get_window_extent()
    for label, point in zip(labels, at, strict=True):
        tried: list[tuple[float, int, Annotation, Bbox]] = []
        for rank, (dx, dy, ha, va) in enumerate(_PLACES):
            text = axes.annotate(
                label,
                point,
                (dx, dy),
                textcoords="offset points",
                ha=ha,
                va=va,
                fontsize=11,
                color=INK.light,
            )
            box = text.get_window_extent()
            covered = sum(_common(box, other) for other in taken)
            outside = box.width * box.height - _common(box, inside)
            tried.append((covered + 3 * outside, rank, text, box))
        best = min(tried, key=lambda t: t[:2])
        for _, rank, text, _ in tried:
            if rank != best[1]:
                text.remove()
        taken.append(best[3])


def _common(a: Bbox, b: Bbox) -> float:
    """Area that two boxes share."""
    width = max(min(a.x1, b.x1) - max(a.x0, b.x0), 0.0)
    height = max(min(a.y1, b.y1) - max(a.y0, b.y0), 0.0)
    return float(width * height)
