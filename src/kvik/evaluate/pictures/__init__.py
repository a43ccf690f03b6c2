"""Pictures of figures, the same on a page and in a file; matplotlib is imported for a drawing.

The drawings (``draw_lines``, ``draw_scatter``, ``draw_heat``, ``draw_bars``, ``draw_spans``) each
return a :class:`Picture`. A page puts ``css()`` in its style and each ``picture.svg()`` in a
``<figure>``; names must differ on one page. ``picture.write_png(folder)`` makes the file.
"""

from kvik.evaluate.pictures.axis import Axis, nats, number, size
from kvik.evaluate.pictures.bars import draw_bars
from kvik.evaluate.pictures.heat import draw_heat
from kvik.evaluate.pictures.lines import Level, Series, Spot, draw_lines
from kvik.evaluate.pictures.palette import css, style
from kvik.evaluate.pictures.picture import Picture, canvas
from kvik.evaluate.pictures.scatter import Point, draw_scatter, pareto
from kvik.evaluate.pictures.spans import draw_spans
from kvik.evaluate.pictures.words import clean, short

__all__ = [
    "Axis",
    "Level",
    "Picture",
    "Point",
    "Series",
    "Spot",
    "canvas",
    "clean",
    "css",
    "draw_bars",
    "draw_heat",
    "draw_lines",
    "draw_scatter",
    "draw_spans",
    "nats",
    "number",
    "pareto",
    "short",
    "size",
    "style",
]
