"""vLLM 0.33: ``vllm serve``."""

from __future__ import annotations

from kvik.export.base import SAME_BYTES, Exported, command
from kvik.plan.request import Request


def vllm(request: Request, model: str) -> Exported:
    """Cache type, block size, length, batch and devices."""
    engine, parallel = request.engine_rules, request.parallel
    found = engine.expressed
    words: list[str | int] = ["vllm", "serve", model, "--kv-cache-dtype", engine.kind.name]
    notes = []
    if engine.kind.name == "float32":
        words[-2:] = ["--dtype", "float32"]
    elif engine.kind.name in ("float16", "bfloat16"):
        # Kernels read K and V in the type that the model computes in.
        words += ["--dtype", engine.kind.name]
        notes.append(SAME_BYTES)
    if found.skipped:
        count = len(request.spec.layers)
        layers = sorted({i for scope in found.skipped for i in scope.layers(count)})
        words += ["--kv-cache-dtype-skip-layers", *layers]
    if found.page is not None:
        words += ["--block-size", found.page]
    words += ["--max-model-len", request.context, "--max-num-seqs", request.batch]
    words += ["--max-num-batched-tokens", engine.inflight]
    if parallel.tp > 1:
        words += ["--tensor-parallel-size", parallel.tp]
    if parallel.pp > 1:
        words += ["--pipeline-parallel-size", parallel.pp]
    if parallel.cp > 1:
        words += ["--decode-context-parallel-size", parallel.cp]
    return Exported("vllm", command(words), cannot=found.lost, notes=tuple(notes))
