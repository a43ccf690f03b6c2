"""TensorRT-LLM 1.2: ``trtllm-serve`` with a file of options."""

from __future__ import annotations

from kvik.export.base import DTYPE, Exported, command, not_said, opened
from kvik.plan.engines.trtllm import BLOCK
from kvik.plan.request import Request

FILE = "kv.yaml"


def trtllm(request: Request, model: str) -> Exported:
    """Cache type, block size, windows and sinks go into the file, the rest is options."""
    engine, parallel = request.engine_rules, request.parallel
    found, source = engine.expressed, opened(request, model)
    notes = [*source.notes]
    words: list[str | int] = ["trtllm-serve", source.name, "--max_seq_len", request.context]
    words += ["--max_batch_size", request.batch, "--config", FILE]
    if request.inflight is not None:
        words += ["--max_num_tokens", request.inflight]
    if parallel.tp > 1:
        words += ["--tp_size", parallel.tp]
    if parallel.pp > 1:
        words += ["--pp_size", parallel.pp]
    if parallel.cp > 1:
        notes.append(
            "HELIX (--cp) is for latent attention (MLA) on Blackwell, in the generation servers of "
            "a disaggregated deployment"
        )
    if request.native is None and engine.kind.name == "auto":
        notes.append(DTYPE.replace("--dtype", "dtype"))
    lost = found.lost + not_said(request) + source.cannot
    return Exported("trtllm", command(words), {FILE: _options(request)}, lost, tuple(notes))


def _options(request: Request) -> str:
    """The file."""
    engine, cp = request.engine_rules, request.parallel.cp
    found, recipe = engine.expressed, str(request.recipe)
    page = found.page or (64 if any(layer.extra for layer in request.spec.layers) else None)
    lines = []
    if request.native is None and engine.kind.name == "auto":  # what the model computes in
        lines.append(f"dtype: {'bfloat16' if 'bf16' in recipe else 'float16'}")
    if cp > 1:
        lines += [f"context_parallel_size: {cp}", "cp_config:", "  cp_type: HELIX"]
        page = page or BLOCK  # said twice, and alike
        lines.append(f"  tokens_per_block: {page}")
    lines += ["kv_cache_config:", f"  dtype: {engine.kind.name}"]
    lines.append(f"  enable_block_reuse: {'false' if found.window else 'true'}")
    if page is not None:
        lines.append(f"  tokens_per_block: {page}")
    if windows := _windows(request):
        lines.append(f"  max_attention_window: {windows}")
    if found.sinks:
        lines.append(f"  sink_token_length: {found.sinks}")
    return "\n".join(lines) + "\n"


def _windows(request: Request) -> list[int]:
    """What each layer with a cache keeps, as far as it does not repeat; empty where all is kept.

    The model's own windows are said too: without them every layer is given the whole length.
    """
    own = request.engine_rules.expressed.window
    bounds = [
        [w for w in (layer.window, own) if w]
        for layer in request.spec.layers
        if layer.caches_tokens
    ]
    if not any(bounds):
        return []
    kept = [min(*bound, request.context) if bound else request.context for bound in bounds]
    for length in range(1, len(kept)):
        if all(w == kept[i % length] for i, w in enumerate(kept)):
            return kept[:length]
    return kept
