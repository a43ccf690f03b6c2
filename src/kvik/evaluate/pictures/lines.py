"""Lines against an axis, one a series, with a legend below and marked places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvik.evaluate.pictures.axis import Axis, set_axes
from kvik.evaluate.pictures.palette import INK, SOFT, style
from kvik.evaluate.pictures.picture import HEIGHT, WIDTH, Picture, canvas
from kvik.evaluate.pictures.words import legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Series:
    """One line: its label and a y for each x; None is a gap. ``style`` keeps its look elsewhere.

    ``low`` and ``high``, where given, are drawn as bars of error at every point.
    """

    label: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    style: int | None = None
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Level:
    """A horizontal line at ``y`` with a name, such as the weights' bytes."""

    label: str
    y: float


@dataclass(frozen=True)
class Spot:
    """A ring around a point of the drawing, such as a crossover; the legend says what rings are."""

    x: float
    y: float


def draw_lines(
    name: str,
    title: str,
    description: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    levels: Sequence[Level] = (),
    spots: Sequence[Spot] = (),
    spots_label: str = "",
    shape: Literal["line", "step"] = "line",
    markers: bool = True,
) -> Picture:
    """A picture of ``series``; ``step`` draws values that hold for a whole x, such as a layer."""
    xs: list[float] = [s.x for s in spots]
    ys: list[float] = [s.y for s in spots] + [level.y for level in levels]
    labels = [s.label for s in series] + [level.label for level in levels]
    rows = legend_rows(labels + ([spots_label] if spots else []))
    with canvas(title, height=HEIGHT + 18 * rows) as (figure, axes):
        for index, one in enumerate(series):
            look = style(index if one.style is None else one.style)
            if not markers:
                look["marker"] = ""
            at = [x.place(v) for v in one.xs]
            to = [y.place(v) for v in one.ys]
            how = "steps-mid" if shape == "step" else "default"
            axes.plot(at, to, label=legend(one.label), drawstyle=how, **look)
            xs, ys = xs + at, ys + to
            if one.low is not None and one.high is not None:
                lows, highs = [y.place(v) for v in one.low], [y.place(v) for v in one.high]
                axes.vlines(at, lows, highs, colors=look["color"], linewidth=1)
                ys = ys + lows + highs
        for level in levels:
            axes.axhline(
                level.y, color=INK.light, lw=1.4, ls=(0, (6, 2)), label=legend(level.label)
            )
        if spots:
            axes.plot(
                [s.x for s in spots],
                [s.y for s in spots],
                ls="",
                marker="o",
                markersize=12,
                fillstyle="none",
                color=INK.light,
                label=legend(spots_label),
            )
        set_axes(axes, x, y, (xs, ys))
        add_legend(figure, axes)
    return Picture(name, title, description, figure)


def legend_rows(labels: Sequence[str]) -> int:
    """Rows that :func:`add_legend` takes for these labels, to add to a picture's height."""
    return -(-len(labels) // _columns(labels)) if len(labels) > 1 else 0


def _columns(labels: Sequence[str]) -> int:
    widest = max((len(label) for label in labels), default=1)
    return max(1, min(3, WIDTH // (7 * widest + 46)))


def add_legend(figure: Figure, axes: Axes) -> None:
    """The legend below the drawing, where there is more than one thing to tell apart."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(
            handles,
            labels,
            loc="outside lower left",
            ncols=_columns(labels),
            handlelength=2.6,
            columnspacing=1.2,
            labelcolor=INK.light,
            edgecolor=SOFT.light,
        )
