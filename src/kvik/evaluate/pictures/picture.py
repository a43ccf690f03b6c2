"""A picture: drawn once with matplotlib, then inline SVG for a page or a PNG file.

``canvas`` gives the empty picture, whose colours come from the palette; the same drawing always
gives the same bytes. Nothing of pyplot is used, so no state is shared.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvik.evaluate.files import write_bytes_atomic
from kvik.evaluate.pictures.inline import inline
from kvik.evaluate.pictures.palette import CARD, GRID, INK, SOFT
from kvik.evaluate.pictures.words import wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# At this width in CSS pixels a point of text is a pixel: readable on a phone without zooming.
WIDTH = 360
HEIGHT = 280
PIXELS = 144  # a PNG file has twice as many pixels


@dataclass(frozen=True)
class Picture:
    """A finished drawing. ``name`` ([a-z0-9-]) is its file name and prefixes its ids on a page.

    ``title`` stands over the drawing, ``description`` says in a sentence or two what is seen.
    """

    name: str
    title: str
    description: str
    figure: Figure

    def svg(self) -> str:
        """An ``<svg>`` element for an HTML page that has ``palette.css()`` in its style.

        Text stays text, colours are CSS variables, and ids are the picture's own.
        """
        out = io.StringIO()
        with _settings():
            nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            self.figure.savefig(out, format="svg", metadata=nothing)
        return inline(out.getvalue(), self.name, self.title, self.description)

    def png(self) -> bytes:
        """The same drawing in its light colours, twice as many pixels as on a page."""
        out = io.BytesIO()
        with _settings():
            self.figure.savefig(out, format="png", dpi=PIXELS, metadata={"Software": None})
        return out.getvalue()

    def write_png(self, folder: Path) -> Path:
        """Write ``folder/name.png``, whole or not at all; KvikError where the disk refuses."""
        path = folder / f"{self.name}.png"
        write_bytes_atomic(path, self.png())
        return path


@contextmanager
def canvas(
    title: str, *, width: int = WIDTH, height: int = HEIGHT
) -> Iterator[tuple[Figure, Axes]]:
    """An empty figure of ``width`` x ``height`` CSS pixels with one set of axes, to draw on."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with _settings():
        figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        lines = wrapped(title, 2 * width // 17)
        figure.suptitle(lines, x=0.01, ha="left", fontsize=13, fontweight="bold")
        yield figure, axes
        settle(figure)


def settle(figure: Figure) -> None:
    """Lay the figure out now and for good: another layout would move things by a hair."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


@contextmanager
def _settings() -> Iterator[None]:
    import matplotlib

    ink, soft, grid, card = INK.light, SOFT.light, GRID.light, CARD.light
    wanted: Any = {
        "svg.hashsalt": "kvik",
        "svg.fonttype": "none",
        "text.parse_math": False,  # a dollar sign is a dollar sign
        "font.family": ["DejaVu Sans"],  # comes with matplotlib: the same everywhere
        "font.size": 12,
        "axes.labelsize": 12,
        "xtick.labelsize": 11,
        "ytick.labelsize": 11,
        "legend.fontsize": 11,
        "legend.frameon": False,
        "figure.facecolor": card,
        "savefig.facecolor": card,
        "axes.facecolor": card,
        "axes.edgecolor": soft,
        "axes.labelcolor": ink,
        "axes.titlecolor": ink,
        "text.color": ink,
        "xtick.color": soft,
        "ytick.color": soft,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "xtick.minor.visible": False,
        "ytick.minor.visible": False,
        "grid.color": grid,
        "grid.linewidth": 0.8,
        "axes.axisbelow": True,
        "lines.linewidth": 1.8,
        "lines.markersize": 6,
        "hatch.color": soft,
        "hatch.linewidth": 0.8,
        "path.simplify": False,
    }
    with matplotlib.rc_context(wanted), warnings.catch_warnings():
        # A letter that the font lacks shows as a box in a PNG file and is itself on a page.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font")
        yield
