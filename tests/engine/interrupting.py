"""Ctrl-C at a chosen line of the package."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


def interrupted_at(line: int, call: Callable[[], T], *, outside: str) -> T:
    """Runs ``call`` and raises SIGINT before its ``line``-th line; 0 for never.

    Lines of the function called ``outside`` do not count: what it has given to its caller cannot
    be taken back.
    """
    left = line

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal left
        if "kvik" not in frame.f_code.co_filename or frame.f_code.co_name == outside:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    before, handler = sys.gettrace(), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        return call()
    finally:
        sys.settrace(before)
        signal.signal(signal.SIGINT, handler)
