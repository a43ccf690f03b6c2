"""A few milliseconds that a signal does not cut in two."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# Of _signal, not signal, which looks for an enumeration's member in every answer: that takes more
# time than all else here.
SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
Handler = Callable[[int, FrameType | None], object]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Python handlers of the usual signals run after the block, not in the middle of it.

    Only the main thread runs handlers, so that elsewhere there is nothing to hold back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hold = _Hold()
    try:
        hold.begin()
        yield
    finally:
        hold.end()


class _Hold:
    """Stands in for the handlers of all signals: keeps what comes, and hands it on at the end.

    A signal can come between any two lines of this too, and raise where it is not held. What is
    left in a handler's place by that hands on what it gets.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._got: list[tuple[int, FrameType | None]] = []
        self._holding = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._holding:
            self._got.append((number, frame))
        else:
            self._handlers[number](number, frame)

    def begin(self) -> None:
        """Takes the handlers' place."""
        for number in SIGNALS:
            handler = _signal.getsignal(number)
            while isinstance(handler, _Hold) and not handler._holding:
                handler = handler._handlers[number]  # one that was left behind
            if callable(handler):
                self._handlers[number] = handler
                _signal.signal(number, self)

    def end(self) -> None:
        """Runs the handlers for what came meanwhile, and gives them their place back."""
        try:
            self._deliver()
        finally:
            self._holding = False
            try:
                for number, handler in self._handlers.items():
                    if _signal.getsignal(number) is self:  # no handler has put in another
                        _signal.signal(number, handler)
            finally:
                self._deliver()

    def _deliver(self) -> None:
        """Every signal once, though a handler raises."""
        while self._got:
            number, frame = self._got.pop(0)
            try:
                self._handlers[number](number, frame)
            finally:
                self._deliver()
