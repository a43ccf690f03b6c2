"""Text from outside as it may stand in a picture."""

from __future__ import annotations

import textwrap


def clean(text: str) -> str:
    """Control characters and halves of surrogate pairs become U+FFFD."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def short(text: str, most: int = 32) -> str:
    """The same in at most ``most`` characters; what is left out of the middle shows as dots."""
    text = clean(text)
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def legend(text: str) -> str:
    """The same for a legend, from which matplotlib leaves out what begins with an underscore."""
    text = short(text)
    return f" {text}" if text.startswith("_") else text


def wrapped(text: str, width: int, lines: int = 3) -> str:
    """The same in at most ``lines`` lines of ``width`` characters."""
    return textwrap.fill(clean(text), width, max_lines=lines, placeholder=" …")
