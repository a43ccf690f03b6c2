"""Page size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvik.recipe.stage import Layout


@dataclass(frozen=True)
class Page(Layout):
    """Allocates K and V in pages of ``tokens`` tokens (32 unless said).

    Use when: many sequences share a pool. Pages only allocate: no result changes.
    Cost: half a page of unused slots per sequence on average.
    Source: PagedAttention (arXiv 2309.06180).
    """

    names: ClassVar = {"page": {}}
