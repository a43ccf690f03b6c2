"""Sliding window: only the newest tokens stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvik.recipe.retention import Positional
from kvik.recipe.stage import arg


@dataclass(frozen=True)
class Window(Positional):
    """Keeps the newest ``tokens`` tokens, the query's own included, at their original positions.

    Use when: together with ``sinks``. Alone it exists to show the collapse that sinks prevent.
    Cost: constant memory. What left the window is gone.
    Source: Longformer (arXiv 2004.05150), Mistral 7B (arXiv 2310.06825).
    """

    names: ClassVar = {"window": {}}
    examples: ClassVar = ("window:1", "window:9", "window:40")

    tokens: int = arg(positional=True, minimum=1)

    @property
    def last(self) -> int:
        """The window."""
        return self.tokens
