"""Block tables and the state of a sequence. Everything here is immutable once published."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kvik.cache.pool import Ids

EMPTY: Ids = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class Table:
    """Pages of a group that keeps tokens by position.

    ``numbers`` are ascending page numbers (position // tokens of a page) and ``pages`` their ids:
    the token at position t lies in slot t % tokens of the page whose number is t // tokens.
    """

    numbers: NDArray[np.int32] = field(default_factory=EMPTY.copy)
    pages: Ids = field(default_factory=EMPTY.copy)

    @property
    def nbytes(self) -> int:
        """Bytes of the table itself."""
        return self.numbers.nbytes + self.pages.nbytes


@dataclass(frozen=True, eq=False)
class RaggedTable:
    """Pages of one KV head whose tokens were chosen: slot i holds the token at ``positions[i]``.

    ``mass`` [T] float32 is the attention each stored token has received, when the policy asks.
    """

    positions: NDArray[np.int32] = field(default_factory=EMPTY.copy)
    pages: Ids = field(default_factory=EMPTY.copy)
    mass: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the table itself, policy state included."""
        mass = 0 if self.mass is None else self.mass.numel() * self.mass.element_size()
        return self.positions.nbytes + self.pages.nbytes + mass


class State(NamedTuple):
    """What a sequence has cached after ``length`` tokens: tables per group, tensors per layer.

    Immutable: a step publishes a new one. Forks and snapshots hold references to its pages.
    Steps that end at or below ``steady`` tokens need no other tables than these, unless one of
    the pages ``open``, which they write to, is shared.
    """

    length: int
    main: tuple[Table | RaggedTable, ...]
    tail: tuple[Table | None, ...]
    layer_states: tuple[Tensor | None, ...]
    steady: int = -1
    open: tuple[int, ...] = ()

    def pages(self) -> Ids:
        """Ids of all pages, one entry per reference."""
        tables = [*self.main, *(t for t in self.tail if t is not None)]
        return np.concatenate([EMPTY, *(t.pages for t in tables)])

    @property
    def table_bytes(self) -> int:
        """Bytes outside the pool: tables, policy state, layer state."""
        tables = sum(t.nbytes for t in (*self.main, *self.tail) if t is not None)
        states = (s for s in self.layer_states if s is not None)
        return tables + sum(s.numel() * s.element_size() for s in states)


class Sequence:
    """A handle on one growing sequence; its ``state`` changes at commit only."""

    __slots__ = ("state",)

    def __init__(self, state: State) -> None:
        self.state = state

    @property
    def length(self) -> int:
        """Tokens processed so far: the position of the next one, never the number of slots."""
        return self.state.length
