"""The driver's end of the wire: a worker process, and where its environment is."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from kvik.errors import KvikError

HERE = Path(__file__).resolve().parent


class Process:
    """A worker script that runs under the interpreter of its peer's environment."""

    def __init__(self, name: str, python: Path, script: Path, threads: int) -> None:
        self.name = name
        # Workers outside this folder find the wire by the path.
        modules = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [python, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ
            | {
                "OMP_NUM_THREADS": str(threads),
                "PYTHONPATH": modules,
                # A peer's own tools, such as the ninja that its extensions load with.
                "PATH": os.pathsep.join((str(python.parent), os.environ.get("PATH", ""))),
            },
        )

    def ask(self, do: str, **what: Any) -> dict[str, Any]:
        """One request; KvikError when the worker says no, or has died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps({"do": do, **what}), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise KvikError(
                f"{self.name} ended with status {self._process.wait()}; run its worker by "
                "hand to see why"
            )
        answer: dict[str, Any] = json.loads(line)
        if not answer.pop("ok"):
            raise KvikError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(KvikError, OSError):
            self.ask("close")
        self._process.kill()
        self._process.communicate()


def python_of(peer: str) -> Path | None:
    """The interpreter of a peer's environment; None where it was not installed."""
    if peer == "kvik":
        return Path(sys.executable)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvik" / "peers"
    python = Path(os.environ.get("KVIK_PEERS") or cache) / peer / "bin" / "python"
    return python if python.exists() else None
