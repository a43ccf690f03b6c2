"""SGLang 0.5.23: ``sglang.launch_server``."""

from __future__ import annotations

from kvik.export.base import DTYPE, Exported, command, not_said, opened
from kvik.plan.request import Request


def sglang(request: Request, model: str) -> Exported:
    """Cache type, page size, length, batch and devices."""
    engine, parallel = request.engine_rules, request.parallel
    found = engine.expressed
    source, notes = opened(request, model), []
    words: list[str | int] = ["python", "-m", "sglang.launch_server"]
    words += ["--model-path", source.name, "--kv-cache-dtype", engine.kind.name]
    if request.native is None and engine.kind.name == "auto":
        words += ["--dtype", "float16"]  # auto is the type that the model computes in
        notes.append(DTYPE)
    if found.page is not None:
        words += ["--page-size", found.page]
    words += ["--context-length", request.context, "--max-running-requests", request.batch]
    words += ["--chunked-prefill-size", engine.inflight]
    if parallel.tp > 1:
        words += ["--tp-size", parallel.tp]
    if parallel.pp > 1:
        words += ["--pp-size", parallel.pp]
    if parallel.cp > 1:
        words += ["--dcp-size", parallel.cp]
    lost = found.lost + not_said(request) + source.cannot
    return Exported("sglang", command(words), cannot=lost, notes=(*source.notes, *notes))
