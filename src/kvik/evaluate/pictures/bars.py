"""Horizontal bars with their labels, whole or stacked from parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvik.evaluate.pictures.axis import Axis, set_axes
from kvik.evaluate.pictures.lines import add_legend, legend_rows
from kvik.evaluate.pictures.palette import CARD, INK, SERIES
from kvik.evaluate.pictures.picture import Picture, canvas
from kvik.evaluate.pictures.words import legend, short

# The parts of a bar differ in these too.
_HATCHES = ("", "////", "....", "xx", "\\\\\\\\", "++", "oo", "--")


def draw_bars(
    name: str,
    title: str,
    description: str,
    labels: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    x: Axis,
    *,
    texts: Sequence[str] | None = None,
) -> Picture:
    """A bar for each label, from the top; ``parts`` maps a part's name to its length in each bar.

    ``texts`` stand behind the bars (their lengths, as the axis writes them, unless given). The
    axis is linear and starts at zero.
    """
    ends = [0.0] * len(labels)
    height = 120 + 30 * len(labels) + 18 * legend_rows(list(parts))
    with canvas(title, height=height) as (figure, axes):
        for index, (part, lengths) in enumerate(parts.items()):
            axes.barh(
                range(len(labels)),
                list(lengths),
                0.62,
                ends,
                color=SERIES[index % len(SERIES)].light,
                hatch=_HATCHES[index % len(_HATCHES)],
                edgecolor=CARD.light,
                linewidth=0.5,
                label=legend(part),
            )
            ends = [end + length for end, length in zip(ends, lengths, strict=True)]
        written = [x.write(end) for end in ends] if texts is None else texts
        for row, (end, text) in enumerate(zip(ends, written, strict=True)):
            axes.annotate(
                short(text, 12),
                (end, row),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=11,
                color=INK.light,
            )
        most = max(ends, default=0.0) * 1.3 or 1.0
        set_axes(axes, x, Axis(""), ([0.0, most], [0.0]))
        axes.set_xlim(0, most)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_yticks(range(len(labels)), [short(label, 22) for label in labels])
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        if len(parts) > 1:
            add_legend(figure, axes)
    return Picture(name, title, description, figure)
