"""Attention sinks: the first tokens stay for good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvik.recipe.retention import Positional
from kvik.recipe.stage import arg


@dataclass(frozen=True)
class Sinks(Positional):
    """Keeps the first ``tokens`` tokens beside a window, so that attention has its sink.

    Sinks are scored at their distance inside the cache (``positions=original``: at their true
    distance). Stored codes never change: the query is rotated a second time instead. On layers that
    slide by design only distances inside the cache are allowed: longer ones than their window are
    none that they were made for.
    Use when: text goes on without end and only the recent part matters.
    Cost: constant memory, one page more than the window alone. Nothing outside can be recalled.
    Source: StreamingLLM (arXiv 2309.17453).
    """

    names: ClassVar = {"sinks": {}}
    examples: ClassVar = (
        "sinks:1+window:8",
        "sinks:3+window:20",
        "sinks:40+window:20",
        "sinks:5,positions=original@0+window:17@0",
    )

    tokens: int = arg(positional=True, minimum=1)
    positions: str = arg("cache", choices=("cache", "original"))

    @property
    def first(self) -> int:
        """The sinks."""
        return self.tokens

    @property
    def in_cache(self) -> bool:
        """Whether sinks are re-positioned next to the window."""
        return self.positions == "cache"
