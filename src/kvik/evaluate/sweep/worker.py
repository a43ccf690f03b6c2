"""A process that works through jobs: JSON lines in, JSON lines out.

``python -m kvik.evaluate.sweep.worker``: the first line on standard input is a Setup, every other
one a Job. Answers are ``{"ready": true}``, ``{"record": ...}``, ``{"end": true}`` after a job, and
``{"error": ...}`` when there is no working at all.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from kvik.errors import KvikError
from kvik.evaluate.sweep.cells import Bench, Job, Setup


def main() -> None:
    """Answers until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it decides when it ends
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not come between

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer, allow_nan=False) + "\n")
        answers.flush()

    try:
        bench = Bench(Setup(**json.loads(sys.stdin.readline())))
    except KvikError as error:
        say({"error": str(error)})
        return
    say({"ready": True})
    for line in sys.stdin:
        for record in bench.work(Job.from_json(json.loads(line))):
            say({"record": record})
        say({"end": True})


if __name__ == "__main__":
    main()
