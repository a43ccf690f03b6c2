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
from typing import TYPE_CHECKING, Any

from kvik.errors import KvikError

if TYPE_CHECKING:
    from kvik.engine.session import Session
    from kvik.evaluate.quality import Window


@dataclass(frozen=True)
class Task:
    """What to measure: token windows as a ``.npy`` ``[n, length]``, references beside them.

    ``reference`` is a folder of one ``.npy`` of logits for each window; the worker with ``record``
    set writes them, the others read them. ``needles`` are the fields of each Needle.
    """

    model: str
    recipe: str
    context: int
    windows: str
    reference: str
    record: bool
    needles: list[dict[str, Any]]
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
    from kvik.evaluate import needle as needles
    from kvik.evaluate import quality
    from kvik.evaluate.metrics import Rows, summarize
    from kvik.evaluate.needle import Needle
    from kvik.models import load_model

    room = session_tokens(task.context)
    model = load_model(task.model, context=room)
    model.use_threads(task.threads)
    result: dict[str, Any] = {"recipe": task.recipe}
    rows = []
    for index, ids in enumerate(np.load(task.windows).tolist()):
        window = quality.Window(ids, task.context)
        session = Session(model, task.recipe, max_tokens=room)
        if index == 0:
            result |= _first(session, window, say)
        else:
            quality.prefill(session, window, lambda n: say("prefill", n))
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
    cells = []
    for needle in (Needle(**fields) for fields in task.needles):
        session = Session(model, task.recipe, max_tokens=needles.room(needle))
        cells.append(needles.ask(session, model.tokenizer, needle))
        say("needle", len(needle.ids))
        session.close()
    result["needle_hits"] = sum(cell.hit for cell in cells)
    result["needle_total"] = len(cells)
    result["needle_cells"] = [asdict(cell) for cell in cells]
    result["peak_rss_bytes"] = peak_rss()
    return result


def _first(session: Session, window: Window, say: Callable[[str, int], None]) -> dict[str, Any]:
    """Feeds the context: how fast, what it holds at its end, how fast tokens come on the way."""
    from kvik.evaluate import held, quality
    from kvik.evaluate.speed import FEW_SECONDS, FEW_STEPS, SECONDS, STEPS, decode_rate, points

    rates, seconds, before = [], 0.0, 0
    for context in points(window.context):
        start = time.perf_counter()
        quality.prefill(session, window, lambda n: say("prefill", n), before, context)
        seconds += time.perf_counter() - start
        last = context == window.context
        count, limit = (STEPS, SECONDS) if last else (FEW_STEPS, FEW_SECONDS)
        twin = session.fork()
        rates.append(decode_rate(twin, window.ids[context], steps=count, seconds=limit))
        twin.close()
        say("decode", count)
        before = context
    plan, state = session.plan, session.state
    return {
        "planned_bytes": session.planned_bytes(window.context),
        "measured_bytes": session.kv_bytes,
        "bytes_per_token": session.kv_bytes / window.context,
        "prefill_tok_s": window.context / seconds,
        "decode_tok_s": rates[-1],
        "decode_curve": rates,
        "layer_bytes": held.layer_bytes(plan, state),
        "table_bytes": held.table_bytes(state),
        "kept": [asdict(part) for part in held.held(plan, state)],
    }


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
