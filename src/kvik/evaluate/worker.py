"""One recipe measured in a process of its own, so that its peak memory is its own.

``python -m kvik.evaluate.worker TASK RESULT``: reads a Task as JSON, says how far it is in JSON
lines on standard output, and leaves its measurements in RESULT. A reason why the recipe cannot be
measured goes there as ``{"error": ...}``.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvik.errors import KvikError


@dataclass(frozen=True)
class Task:
    """What to measure: token windows as a ``.npy`` ``[n, length]``, references beside them.

    ``reference`` is a folder of one ``.npy`` of logits for each window; the worker with ``record``
    set writes them, the others read them. ``needles`` are (ids, number) pairs.
    """

    model: str
    recipe: str
    context: int
    windows: str
    reference: str
    record: bool
    needles: list[tuple[list[int], str]]
    threads: int


def session_tokens(context: int) -> int:
    """Tokens that a session needs room for: the context and any of the measurements after it."""
    from kvik.evaluate.quality import SCORED
    from kvik.evaluate.speed import STEPS

    return context + max(SCORED, STEPS) + 2


def work(task: Task, say: Callable[[str, int], None]) -> dict[str, Any]:
    """All measurements of one recipe; ``say`` hears the stage and the tokens it took."""
    import numpy as np

    from kvik.engine.session import Session
    from kvik.evaluate import needle, quality, speed
    from kvik.evaluate.metrics import Rows, summarize
    from kvik.models import load_model

    model = load_model(task.model)
    model.use_threads(task.threads)
    room = session_tokens(task.context)
    result: dict[str, Any] = {"recipe": task.recipe}
    rows = []
    for index, ids in enumerate(np.load(task.windows).tolist()):
        window = quality.Window(ids, task.context)
        session = Session(model, task.recipe, max_tokens=room)
        start = time.perf_counter()
        quality.prefill(session, window, lambda n: say("prefill", n))
        seconds = time.perf_counter() - start
        if index == 0:
            result["planned_bytes"] = session.planned_bytes(task.context)
            result["measured_bytes"] = session.kv_bytes
            result["bytes_per_token"] = session.kv_bytes / task.context
            result["prefill_tok_s"] = task.context / seconds
            twin = session.fork()
            result["decode_tok_s"] = speed.decode_rate(twin, ids[task.context])
            twin.close()
            say("decode", speed.STEPS)
        path = Path(task.reference) / f"{index}.npy"
        if task.record:
            shape = (window.rows, model.spec.vocab)
            out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
            rows.append(quality.record(session, window, out, lambda n: say("quality", n)))
            out.flush()
        else:
            reference = np.load(path, mmap_mode="r")
            rows.append(quality.measure(session, window, reference, lambda n: say("quality", n)))
        session.close()
    figures = asdict(summarize(Rows.join(rows)))
    figures.pop("tokens")
    result.update(figures)
    result["needle_hits"] = 0
    result["needle_total"] = len(task.needles)
    for ids, number in task.needles:
        session = Session(model, task.recipe, max_tokens=len(ids) + needle.ANSWER_TOKENS)
        hit = needle.ask(session, model.tokenizer, needle.Needle(ids, number, 0.0))
        result["needle_hits"] += hit
        say("needle", len(ids))
        session.close()
    result["peak_rss_bytes"] = peak_rss()
    return result


def peak_rss() -> int:
    """The most memory in bytes that this process has held."""
    try:
        # getrusage would start from the peak of the process that launched this one.
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _say(stage: str, tokens: int) -> None:
    print(json.dumps([stage, tokens]), flush=True)


def main(argv: Sequence[str]) -> None:
    """Read the task, work, leave the result."""
    task = Task(**json.loads(Path(argv[0]).read_text(encoding="utf-8")))
    try:
        result = work(task, _say)
    except KvikError as error:
        result = {"recipe": task.recipe, "error": str(error)}
    except MemoryError:
        result = {"recipe": task.recipe, "error": "out of memory"}
    Path(argv[1]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
