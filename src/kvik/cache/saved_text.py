"""What a saved sequence stands for, and what has to be true of it."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvik.cache.table import Sequence
from kvik.errors import KvikError
from kvik.recipe.plan import Plan


@dataclass(frozen=True)
class Saved:
    """A ``sequence`` and the text it stands for.

    ``ids`` are its token ids, ``marks`` ascending positions among them, ``domain`` says whose it
    is: only requests of the same domain may use it.
    """

    sequence: Sequence
    ids: tuple[int, ...]
    marks: tuple[int, ...] = ()
    domain: str = ""


@dataclass(frozen=True)
class About:
    """What the header of a saved sequence says: its recipe as text, whose it is, how long."""

    recipe: str
    domain: str
    tokens: int


def layout_digest(plan: Plan) -> str:
    """Identifies where every byte of a page lies and which codec reads it."""
    formats = [(g.head, g.main, g.tail, [lp.codecs for lp in g.layers]) for g in plan.groups]
    return hashlib.sha256(f"{sys.byteorder} {formats!r}".encode()).hexdigest()


def check_text(plan: Plan, length: int, ids: NDArray[np.int64], marks: NDArray[np.int64]) -> None:
    """KvikError when ids and marks are not those of ``length`` cached tokens."""
    if not plan.recompute and ids.size != length:
        raise KvikError(
            f"a saved sequence of {length} tokens has as many ids, not {ids.size}; give them all"
        )
    if (ids < 0).any():
        raise KvikError("a saved sequence has impossible token ids; they count from 0")
    if marks.size and (marks[0] < 0 or marks[-1] > ids.size or (np.diff(marks) <= 0).any()):
        raise KvikError(
            f"a saved sequence has impossible marks; they are ascending positions, 0 to {ids.size}"
        )
