"""TensorRT-LLM 1.2: ``trtllm-serve`` with a file of options."""

from __future__ import annotations

from kvik.export.base import Exported, command, only_one_device
from kvik.plan.request import Request

FILE = "kv.yaml"


def trtllm(request: Request, model: str) -> Exported:
    """Cache type, block size, window and sinks go into the file, the rest is options."""
    engine, parallel = request.engine_rules, request.parallel
    found = engine.expressed
    lines = ["kv_cache_config:", f"  dtype: {engine.kind.name}"]
    lines.append(
        "  enable_block_reuse: true" if not found.window else "  enable_block_reuse: false"
    )
    if found.page is not None or any(layer.extra for layer in request.spec.layers):
        lines.append(f"  tokens_per_block: {found.page or 64}")
    if found.window:
        lines.append(f"  max_attention_window: [{found.window}]")
    if found.sinks:
        lines.append(f"  sink_token_length: {found.sinks}")
    words: list[str | int] = ["trtllm-serve", model, "--max_seq_len", request.context]
    words += ["--max_batch_size", request.batch, "--config", FILE]
    if parallel.tp > 1:
        words += ["--tp_size", parallel.tp]
    if parallel.pp > 1:
        words += ["--pp_size", parallel.pp]
    lost = found.lost + only_one_device(request, "cp")
    notes = ("dtype auto is the 16-bit type of the checkpoint, for fp16 and bf16 alike",)
    follows = engine.kind.name == "auto" and request.recipe is not None
    return Exported(
        "trtllm",
        command(words),
        {FILE: "\n".join(lines) + "\n"},
        lost,
        notes if follows else (),
    )
