"""Quality through the cache: a context, then teacher-forced tokens whose logits are compared.

The protocol: C tokens are fed in chunks, then ``scored`` tokens in chunks of 32, and each row of
logits is set against the row that the full fp32 cache gives for the same token. By the position
law the chunks change nothing, which the tests prove against single steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from kvik.evaluate.metrics import Rows, score

SCORED = 512
CHUNK = 32
PREFILL_CHUNK = 512


class Feeds(Protocol):
    """What is asked of a session here (``kvik.engine.session.Session``)."""

    def feed(
        self, tokens: Sequence[int], *, logits: Literal["last", "all"] = ..., chunk: int = ...
    ) -> Any:
        """Append tokens; logits ``[1 or n, vocab]`` of the last or of all of them."""


@dataclass(frozen=True)
class Window:
    """One run of the text: ``context`` tokens to prefill, then the scored ones and a last target.

    Row i of the logits, after token context + i, predicts token context + i + 1.
    """

    ids: Sequence[int]
    context: int

    @property
    def rows(self) -> int:
        """How many rows of logits are scored."""
        return len(self.ids) - self.context - 1

    @staticmethod
    def length(context: int, scored: int = SCORED) -> int:
        """Tokens of text that a window takes."""
        return context + scored + 1


def prefill(
    session: Feeds,
    window: Window,
    progress: Callable[[int], None],
    start: int = 0,
    stop: int | None = None,
) -> None:
    """Feed the context, or its tokens [start, stop); ``progress`` hears how many went in."""
    end = window.context if stop is None else stop
    for i in range(start, end, PREFILL_CHUNK):
        part = window.ids[i : min(i + PREFILL_CHUNK, end)]
        session.feed(part, logits="last", chunk=PREFILL_CHUNK)
        progress(len(part))


def forced_logits(
    session: Feeds, window: Window, chunk: int = CHUNK
) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Feed the scored tokens; yields the rows covered and their logits ``[n, vocab]``."""
    for start in range(0, window.rows, chunk):
        stop = min(start + chunk, window.rows)
        part = window.ids[window.context + start : window.context + stop]
        yield slice(start, stop), session.feed(part, logits="all", chunk=chunk).numpy()


def record(
    session: Feeds,
    window: Window,
    out: NDArray[np.float32],
    progress: Callable[[int], None],
) -> Rows:
    """Write the full cache's logits into ``out`` ``[rows, vocab]``; its rows against itself."""
    parts = []
    for rows, logits in forced_logits(session, window):
        out[rows] = logits
        parts.append(score(logits, logits, _targets(window, rows)))
        progress(len(logits))
    return Rows.join(parts)


def measure(
    session: Feeds,
    window: Window,
    reference: NDArray[np.float32],
    progress: Callable[[int], None],
) -> Rows:
    """Score the session's logits against the stored ones of the full cache."""
    parts = []
    for rows, logits in forced_logits(session, window):
        parts.append(score(np.asarray(reference[rows]), logits, _targets(window, rows)))
        progress(len(logits))
    return Rows.join(parts)


def _targets(window: Window, rows: slice) -> NDArray[np.int64]:
    ids = window.ids[window.context + rows.start + 1 : window.context + rows.stop + 1]
    return np.asarray(ids, dtype=np.int64)
