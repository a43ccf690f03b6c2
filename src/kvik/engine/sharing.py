"""What sequences of one prompt save by sharing pages."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from kvik.cache import KVCache, Sequence


@dataclass(frozen=True)
class Shared:
    """Bytes that some sequences would hold each for itself (``separate``), and that they hold.

    Tables and states, which nobody shares, are in both.
    """

    separate: int
    shared: int

    @property
    def saved_fraction(self) -> float:
        """The share of ``separate`` that was saved; 0 where nothing is held."""
        return 1 - self.shared / self.separate if self.separate else 0.0


def shared_bytes(cache: KVCache, sequences: Seq[Sequence]) -> Shared:
    """What ``sequences`` (beams, parallel samples) hold now, apart and together."""
    return Shared(sum(map(cache.nbytes, sequences)), cache.nbytes(*sequences))
