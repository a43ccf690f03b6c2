"""Ctrl-C at a chosen line of the package."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar

import pytest

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


def lines_of(call: Callable[[], object]) -> int:
    """How many lines of the package ``call`` runs."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal count
        if "kvik" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def at_some_lines(make: Callable[[], Callable[[], object]], most: int) -> Iterator[int]:
    """Interrupts what ``make`` sets up at up to ``most`` of its lines, in turn.

    Yields after each interrupt, for the caller to look at what is left, its line.
    """
    total = lines_of(make())
    for line in range(1, total + 1, max(1, total // most)):
        call = make()
        with pytest.raises(KeyboardInterrupt):
            interrupted_at(line, call, outside="")
        yield line
