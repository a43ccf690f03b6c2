"""The line protocol between the driver and a peer: JSON lines over stdin and stdout.

A worker runs in the peer's own environment, so this file uses the standard library alone. It
answers one line to each line it reads, in order. Requests, and what the answers hold besides
``ok``:

* ``open``: a model file and settings; what the system calls itself, its version
* ``fill``: so many tokens in each of so many sequences, by whatever way is quick; seconds
* ``decode``: steps of one token for every filled sequence, then back to the filled length; seconds
  of each step
* ``prefill``: the prompts are computed in full, from an empty cache; seconds
* ``close``: the end

A worker may answer more than these: its ``more``.

An error answers ``{"ok": false, "error": "..."}``; the worker lives on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

Answers = Mapping[str, Callable[..., dict[str, Any]]]


class Worker(Protocol):
    """One system under test."""

    def open(self, **settings: Any) -> dict[str, Any]:
        """Loads the model."""

    def fill(self, tokens: int, sequences: int) -> dict[str, Any]:
        """Leaves every sequence with ``tokens`` tokens in its cache."""

    def step(self) -> None:
        """One new token for every filled sequence."""

    def rewind(self) -> None:
        """Back to the length that ``fill`` left."""

    def prefill(self, tokens: int, sequences: int) -> float:
        """Seconds to compute the prompts from nothing."""


def decode(worker: Worker, steps: int, warm: int = 1) -> dict[str, Any]:
    """Seconds of each step; ``warm`` steps before them are not counted."""
    seconds = []
    for number in range(warm + steps):
        start = time.perf_counter()
        worker.step()
        if number >= warm:
            seconds.append(time.perf_counter() - start)
    worker.rewind()
    return {"seconds": seconds}


def serve(worker: Worker, **more: Callable[..., dict[str, Any]]) -> None:
    """Answers what every worker is asked, and ``more``."""
    answer_all(
        {
            "open": worker.open,
            "fill": worker.fill,
            "decode": lambda **asked: decode(worker, **asked),
            "prefill": lambda **asked: {"seconds": worker.prefill(**asked)},
            **more,
        }
    )


def answer_all(known: Answers) -> None:
    """Answers requests by name until ``close`` or the end of input.

    What a library prints goes to stderr: its stdout is put out of the way first.
    """
    known = {**known, "close": lambda: {}}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        do = request.pop("do")
        try:
            if do not in known:
                raise ValueError(f"{do!r} is none of {', '.join(known)}")
            answer = {"ok": True, **known[do](**request)}
        except Exception as error:
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
        if do == "close":
            break
