"""A few milliseconds that a signal does not cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Python handlers of the usual signals run after the block, not in the middle of it.

    Only the main thread runs handlers, so that elsewhere there is nothing to hold back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    handlers = {n: h for n in SIGNALS if callable(h := signal.getsignal(n))}
    for number in handlers:
        signal.signal(number, lambda got, frame: held.append((got, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in held:
            handlers[signal.Signals(number)](number, frame)
