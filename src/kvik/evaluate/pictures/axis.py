"""What an axis shows: its label, scale and how its figures are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvik.evaluate.pictures.words import short
from kvik.machine import human_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def number(value: float) -> str:
    """1,024 or 0.25, as short as it is exact enough for an axis."""
    return f"{value:,.0f}" if value == round(value) else f"{value:.3g}"


def size(value: float) -> str:
    """Bytes as ``human_bytes`` writes them, without an empty decimal: 64 MiB."""
    return human_bytes(value).replace(".0 ", " ")


def nats(value: float) -> str:
    """Powers of ten shortly: 1e-4, 0.01, 1."""
    return f"{value:g}" if value >= 1e-3 else f"{value:.0e}".replace("e-0", "e-")


@dataclass(frozen=True)
class Axis:
    """One axis. ``log2`` has its ticks at powers of two, as contexts and bytes like them.

    On a logarithmic axis values at or below ``floor`` (zero too) are drawn at ``floor``, whose
    tick reads ``under``. ``least`` and ``most`` widen what the data span; they never cut. A
    ``whole`` axis counts things, of which there are no halves.
    """

    label: str
    scale: Literal["linear", "log", "log2"] = "linear"
    write: Callable[[float], str] = number
    floor: float | None = None
    under: str = "0"
    least: float | None = None
    most: float | None = None
    whole: bool = False

    def place(self, value: float | None) -> float:
        """Where a value is drawn; NaN, a gap, for none and for what a logarithm does not have."""
        if value is None or not math.isfinite(value):
            return math.nan
        if self.floor is not None:
            return max(value, self.floor)
        return value if self.scale == "linear" or value > 0 else math.nan


def set_axes(axes: Axes, x: Axis, y: Axis, values: Sequence[Sequence[float]]) -> None:
    """Scales, limits, ticks, labels and the grid of a drawing with these x and y ``values``."""
    for axis, which, data in ((x, "x", values[0]), (y, "y", values[1])):
        _set(axes, axis, which, [v for v in data if math.isfinite(v)])
    axes.grid(True)


def _set(axes: Axes, axis: Axis, which: str, data: list[float]) -> None:
    from matplotlib.ticker import (
        FuncFormatter,
        LogLocator,
        MaxNLocator,
        MultipleLocator,
        NullLocator,
    )

    found = [*data, *(v for v in (axis.least, axis.most, axis.floor) if v is not None)]
    low, high = (min(found), max(found)) if found else (0.0, 1.0)
    main = axes.xaxis if which == "x" else axes.yaxis
    if axis.scale == "linear":
        pad = 0.04 * (high - low or abs(high) or 1.0)
        start = low if low == axis.least else low - pad
        limits = (start, high + pad)
        if axis.write is size and high > 0:
            main.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(high / 5))))
        else:
            main.set_major_locator(MaxNLocator(5, integer=axis.whole))
    else:
        base = 2 if axis.scale == "log2" else 10
        getattr(axes, f"set_{which}scale")("log", base=base)
        if low <= 0:
            low, high = 0.1, 1.0
        if high / low < 4:  # a single value, say: at least two ticks all the same
            low, high = low / 2, high * 2
        ratio = (high / low) ** 0.05
        limits = (low / ratio, high * ratio)
        between = (1.0, 2.0, 5.0) if base == 10 and high / low < 100 else (1.0,)
        main.set_major_locator(LogLocator(base, subs=between, numticks=7))
        main.set_minor_locator(NullLocator())
    getattr(axes, f"set_{which}lim")(limits)
    main.set_major_formatter(FuncFormatter(lambda v, _: _tick(axis, v)))
    getattr(axes, f"set_{which}label")(short(axis.label, 40))


def _tick(axis: Axis, value: float) -> str:
    at_floor = axis.floor is not None and value <= axis.floor * 1.001
    return axis.under if at_floor else axis.write(value)
