"""The process that renders chat templates: started at the first use, killed when it overruns."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from threading import Lock
from typing import Any

START_SECONDS = 60.0
WALL_SECONDS = 5.0  # the worker's own limit, in processor time, comes first on an idle machine
MAX_ERROR = 300


class TemplateError(Exception):
    """Says what is wrong with a template; reads on from "the chat template ..."."""


def run(request: dict[str, Any]) -> str:
    """The text that the template in ``request`` renders to; TemplateError where it does not."""
    line = json.dumps(request).encode() + b"\n"
    with _lock:
        reply = _ask(line)
    if "error" in reply:
        raise TemplateError(" ".join(reply["error"].split())[:MAX_ERROR])
    return reply["text"]


def _ask(line: bytes) -> dict[str, str]:
    global _worker
    if _worker is None or not _worker.usable:
        _worker = _Worker()
    try:
        return _worker.ask(line)
    except TemplateError:
        _worker = None
        raise


class _Worker:
    def __init__(self) -> None:
        self._owner = os.getpid()
        script = Path(__file__).with_name("template_worker.py")
        # -P: the folder of the script is no place to import from.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        atexit.register(self.close)
        if self._read_line(START_SECONDS).strip() != b"ready":
            self.close()
            raise TemplateError("needs jinja2 3.1.6 or later: pip install 'kvik[run]'")

    @property
    def usable(self) -> bool:
        """Whether it lives and is ours; after a fork it is our parent's."""
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, line: bytes) -> dict[str, str]:
        """The reply to one request; whatever goes wrong ends the process."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            reply = self._read_line(WALL_SECONDS)
        except BrokenPipeError:
            reply = b""
        except BaseException:  # interrupted: the reply that is still to come must not be read later
            self.close()
            raise
        if reply.endswith(b"\n"):
            answer: dict[str, str] = json.loads(reply)
            return answer
        self.close()
        raise TemplateError("runs too long or ends its process; it is stopped")

    def _read_line(self, seconds: float) -> bytes:
        """What comes up to a newline; less at the end of the stream or of the time."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        end = time.monotonic() + seconds
        parts: list[bytes] = []
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while not (parts and parts[-1].endswith(b"\n")):
                if not selector.select(max(end - time.monotonic(), 0.0)):
                    break
                part = os.read(descriptor, 1 << 20)
                if not part:
                    break
                parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        """End the process and its pipes."""
        atexit.unregister(self.close)
        if self._owner != os.getpid():
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # unsent bytes have nobody to read them
                    pipe.close()


_lock = Lock()
_worker: _Worker | None = None
