"""llama.cpp: ``llama-server``."""

from __future__ import annotations

from kvik.export.base import Exported, command, not_said, opened_file
from kvik.plan.engines.llamacpp import BLOCKS
from kvik.plan.request import Request


def llamacpp(request: Request, model: str) -> Exported:
    """Cache types, cells for all sequences, micro-batch."""
    engine = request.engine_rules
    found = engine.expressed
    source, pp = opened_file(request, model), request.parallel.pp
    words: list[str | int] = ["llama-server", "-m", source.name]
    words += ["-c", request.context * request.batch, "-np", request.batch, "-no-kvu"]
    words += ["-ctk", found.k, "-ctv", found.v, "-ub", engine.inflight]
    if BLOCKS[found.v][0] > 1:
        words += ["-fa", "on"]  # quantized V is read by flash attention only
    if pp > 1:  # layers and their cells, in equal parts
        words += ["-sm", "layer", "-ts", ",".join(["1"] * pp)]
    notes = [*source.notes]
    if BLOCKS[found.k][0] > 1:
        notes.append("llama.cpp rotates quantized K (LLAMA_ATTN_ROT_DISABLE=1 turns that off)")
    lost = found.lost + not_said(request) + source.cannot
    return Exported("llamacpp", command(words), cannot=lost, notes=tuple(notes))
