"""The colours of all pictures, each in a light and a dark form, and what else tells series apart.

Series differ in colour, marker and line, so that no reader needs the colours. They start from
Okabe and Ito's set, which colour-blind readers can tell apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Colour:
    """One colour of the pictures: a CSS variable on a page, ``light`` in a PNG file."""

    name: str
    light: str
    dark: str


INK = Colour("ink", "#1d2329", "#e6eaed")
SOFT = Colour("soft", "#5c6670", "#9aa5ae")
GRID = Colour("grid", "#dfe3e6", "#313a42")
CARD = Colour("card", "#ffffff", "#1b2126")
ALERT = Colour("alert", "#b3261e", "#ff8a80")

SERIES = (
    Colour("s0", "#0072b2", "#56aee6"),
    Colour("s1", "#d55e00", "#ff8f4d"),
    Colour("s2", "#009e73", "#3fcb9f"),
    Colour("s3", "#b65a94", "#e39cc4"),
    Colour("s4", "#b07900", "#f0b83a"),
    Colour("s5", "#3d9bd4", "#9ad5fa"),
    Colour("s6", "#6b5b95", "#b9a9e6"),
    Colour("s7", "#606b75", "#b7c1c9"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
LINES = ("-", "--", "-.", ":")

# From little to much; far from the page's colour is much, on a light page and on a dark one.
HEAT = tuple(
    Colour(f"h{i}", light, dark)
    for i, (light, dark) in enumerate(
        (
            ("#f3f7fb", "#222a31"),
            ("#dbe9f4", "#253a4b"),
            ("#bed8eb", "#274d68"),
            ("#9ac4e0", "#296186"),
            ("#6eaad1", "#3a79a5"),
            ("#4790c1", "#5593c0"),
            ("#2876ae", "#78afd8"),
            ("#145c93", "#a2cbe9"),
            ("#0a4171", "#d0e6f7"),
        )
    )
)
# Text on the lower and on the upper half of them.
ON_LITTLE = Colour("on-little", "#1d2328", "#e6eaee")
ON_MUCH = Colour("on-much", "#fefefe", "#10161b")

ALL = (INK, SOFT, GRID, CARD, ALERT, *SERIES, *HEAT, ON_LITTLE, ON_MUCH)


def style(index: int, *, line: bool = True) -> dict[str, Any]:
    """Colour, marker and line of series ``index`` as matplotlib takes them; the first 88 differ."""
    given: dict[str, Any] = {
        "color": SERIES[index % len(SERIES)].light,
        "marker": MARKERS[index % len(MARKERS)],
    }
    if line:
        given["linestyle"] = LINES[index % len(LINES)]
    return given


def css() -> str:
    """The colours as CSS variables for a page that shows pictures: light, and dark if preferred."""
    light = " ".join(f"--k-{c.name}: {c.light};" for c in ALL)
    dark = " ".join(f"--k-{c.name}: {c.dark};" for c in ALL)
    return (
        f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"
        "svg.picture { display: block; width: 100%; height: auto; }\n"
    )


def variables(text: str) -> str:
    """SVG or CSS text with every colour replaced by its variable.

    ValueError for a colour that is none of these: it would be wrong on a dark page.
    """
    import re

    names = {c.light: f"var(--k-{c.name})" for c in ALL}
    found = set(re.findall(r"#[0-9a-fA-F]{6}\b", text)) - set(names)
    if found:
        raise ValueError(f"colours outside the palette: {', '.join(sorted(found))}")
    return re.sub(r"#[0-9a-fA-F]{6}\b", lambda match: names[match[0]], text)
