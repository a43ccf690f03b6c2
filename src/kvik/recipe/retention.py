"""Retention: which tokens a query may see, and so which have to be stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvik.recipe.stage import Slot, Stage

if TYPE_CHECKING:
    import torch

FOREVER = 2**31 - 1
Ranges = list[tuple[int, int]]


@dataclass(frozen=True)
class Retention(Stage):
    """Base of every stage that decides what stays."""

    slot: ClassVar[Slot] = Slot.RETENTION


@dataclass(frozen=True)
class Positional(Retention):
    """Keeps tokens by position alone; several such stages keep what any of them keeps."""

    @property
    def first(self) -> int:
        """Leading tokens that stay for good."""
        return 0

    @property
    def last(self) -> int:
        """Newest tokens that stay, the query's own included."""
        return 0


@dataclass(frozen=True)
class Kept:
    """Resolved positional retention of a layer: the first ``sinks`` and the last ``window``.

    ``window`` None keeps everything. With ``in_cache`` the sinks are scored at their distance
    inside the cache, as StreamingLLM does (arXiv 2309.17453), not at their original one.
    """

    window: int | None = None
    sinks: int = 0
    in_cache: bool = False

    def until(self, position: int) -> int:
        """First query position that no longer sees the token at ``position``."""
        if self.window is None or position < self.sinks:
            return FOREVER
        return position + self.window

    def alive(self, seen: int) -> Ranges:
        """Half-open ranges of the stored tokens that the query at position ``seen`` sees."""
        start = 0 if self.window is None else max(0, seen - self.window + 1)
        sinks = min(self.sinks, seen)
        if start <= sinks:
            return [(0, seen)] if seen else []
        return [(0, sinks), (start, seen)] if sinks else [(start, seen)]

    @property
    def span(self) -> int | None:
        """Most tokens a query sees; None without a bound."""
        return None if self.window is None else self.window + self.sinks


@dataclass(frozen=True)
class Evicting(Retention):
    """Chooses tokens per KV head by what the queries did; survivors are compacted.

    An event takes place before the query at every positive multiple of ``interval``: each KV
    head keeps ``budget(...)`` of its tokens. ``signals`` names what the kernels have to collect:
    ``mass`` is the attention each stored token received, summed over queries and over G.
    """

    signals: ClassVar[frozenset[str]] = frozenset()

    @property
    def interval(self) -> int:
        """Tokens between two events."""
        raise NotImplementedError

    @property
    def steady(self) -> bool:
        """Whether no budget grows by more tokens than were seen since the one before.

        So it is for a number of tokens and for a share of them. Then the last event alone decides
        what is stored, and plans of a million tokens cost nothing.
        """
        return False

    def budget(self, seen: int, layer: int, head: int) -> int:
        """Tokens that stay after the event at position ``seen``; never fewer at a later one."""
        raise NotImplementedError

    def select(
        self, positions: torch.Tensor, mass: torch.Tensor, keep: int, seen: int
    ) -> torch.Tensor:
        """Ascending indices [keep] of the survivors among ``positions`` [T] (ascending).

        ``mass`` [T] float32 is there when ``signals`` asks for it. Ties go to the lower position.
        """
        raise NotImplementedError

    def stored(self, seen: int, layer: int, head: int) -> int:
        """Tokens stored once ``seen`` tokens were processed.

        An event leaves its budget or fewer, so the tightest one decides: its budget and what came
        since. Events further back than the tokens that are left cannot be the tightest.
        """
        kept = last = max(0, seen - 1) // self.interval * self.interval
        if last and self.steady:
            return min(last, self.budget(last, layer, head)) + seen - last
        event = last
        while event > 0 and last - event < kept:
            kept = min(kept, self.budget(event, layer, head) + last - event)
            event -= self.interval
        return kept + seen - last

    def most_stored(self, seen: int, layer: int, head: int) -> int:
        """Most tokens stored at any time until ``seen`` tokens were processed."""
        if self.steady:  # they grow from event to event: now, or just before the last one
            last = max(0, seen - 1) // self.interval * self.interval
            return max(self.stored(n, layer, head) for n in (last, seen))
        kept = most = 0
        for event in range(self.interval, seen, self.interval):
            most = max(most, kept + self.interval)
            kept = min(kept + self.interval, self.budget(event, layer, head))
        return max(most, self.stored(seen, layer, head))
