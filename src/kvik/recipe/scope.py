"""Layer scopes: the part of a stage after ``@``, such as ``0-1,-1``."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ITEM = re.compile(r"(-?\d{1,6})(?:-(-?\d{1,6}))?\Z", re.ASCII)


@dataclass(frozen=True)
class Scope:
    """Inclusive layer ranges; negative numbers count from the end. No ranges: every layer."""

    ranges: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        ordered = sorted(set(self.ranges), key=lambda r: (r[0] < 0, r))
        object.__setattr__(self, "ranges", tuple(ordered))

    @classmethod
    def parse(cls, text: str) -> Scope:
        """``0-1,-1`` means layers 0, 1 and the last; ValueError when it is not of that form."""
        ranges = []
        for item in text.split(","):
            match = _ITEM.match(item)
            if not match:
                raise ValueError(f"{item!r} is no layer or range; write 3, 0-5 or -1")
            first = int(match[1])
            last = int(match[2]) if match[2] is not None else first
            if (first < 0) == (last < 0) and last < first:
                raise ValueError(f"range {item!r} runs backwards")
            ranges.append((first, last))
        return cls(tuple(ranges))

    def layers(self, count: int) -> frozenset[int]:
        """The layer numbers among ``count`` layers; ValueError when one does not exist."""
        if not self.ranges:
            return frozenset(range(count))
        found: set[int] = set()
        for first, last in self.ranges:
            low, high = (x + count if x < 0 else x for x in (first, last))
            if not 0 <= low <= high < count:
                raise ValueError(
                    f"layers {self} do not fit a model of {count} layers; "
                    f"write 0 to {count - 1}, or -1 to -{count} from the end"
                )
            found.update(range(low, high + 1))
        return frozenset(found)

    def __str__(self) -> str:
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in self.ranges)
