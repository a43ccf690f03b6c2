"""llama.cpp: ``llama-server``."""

from __future__ import annotations

from kvik.export.base import Exported, command, only_one_device
from kvik.plan.engines.llamacpp import BLOCKS
from kvik.plan.request import Request


def llamacpp(request: Request, model: str) -> Exported:
    """Cache types, cells for all sequences, micro-batch."""
    engine = request.engine_rules
    found = engine.expressed
    path = model if model.casefold().endswith(".gguf") else f"{model}.gguf"
    words: list[str | int] = ["llama-server", "-m", path]
    words += ["-c", request.context * request.batch, "-np", request.batch, "-no-kvu"]
    words += ["-ctk", found.k, "-ctv", found.v, "-ub", engine.inflight]
    if BLOCKS[found.v][0] > 1:
        words += ["-fa", "on"]  # quantized V is read by flash attention only
    notes = []
    if path != model:
        notes.append(f"{path} stands for the model's GGUF file")
    if BLOCKS[found.k][0] > 1:
        notes.append("llama.cpp rotates quantized K (LLAMA_ATTN_ROT_DISABLE=1 turns that off)")
    lost = found.lost + only_one_device(request, "tp", "cp", "pp")
    return Exported("llamacpp", command(words), cannot=lost, notes=tuple(notes))
