"""vLLM 0.33: ``vllm serve``."""

from __future__ import annotations

from kvik.export.base import DTYPE, Exported, command, not_said, opened
from kvik.plan.request import Request


def vllm(request: Request, model: str) -> Exported:
    """Cache type, block size, length, batch and devices."""
    engine, parallel = request.engine_rules, request.parallel
    found = engine.expressed
    source, name = opened(request, model), engine.kind.name
    words: list[str | int] = ["vllm", "serve", source.name, "--kv-cache-dtype", name]
    notes = [*source.notes]
    if name in ("float32", "float16", "bfloat16"):
        # Its kernels read a cache without codes in the type that the model computes in.
        words[-2:] = ["--dtype", name] + ["--kv-cache-dtype", name] * (name != "float32")
        notes.append(DTYPE)
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
    lost = found.lost + not_said(request) + source.cannot
    return Exported("vllm", command(words), cannot=lost, notes=tuple(notes))
