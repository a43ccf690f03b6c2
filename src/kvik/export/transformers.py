"""transformers 5.24: the cache arguments of ``generate``."""

from __future__ import annotations

from kvik.export.base import Exported, not_said, opened
from kvik.plan.engines.transformers import GROUP, RESIDUAL
from kvik.plan.request import Request


def transformers(request: Request, model: str) -> Exported:
    """Arguments of ``from_pretrained`` and ``generate``, as Python."""
    engine = request.engine_rules
    found = engine.expressed
    name, bits, dtype = found.k.partition("-")[0], found.k.partition("-")[2], found.k
    cache = 'cache_implementation="dynamic"'
    if bits:
        dtype = "bfloat16"
        cache = (
            'cache_implementation="quantized", cache_config='
            f'{{"backend": "{name}", "nbits": {bits}, "q_group_size": {GROUP}, '
            f'"residual_length": {RESIDUAL}}}'
        )
    source = opened(request, model)
    imports, devices, notes = _devices(request)
    code = (
        f"{imports}from transformers import AutoModelForCausalLM\n\n"
        f'model = AutoModelForCausalLM.from_pretrained({source.name!r}, dtype="{dtype}"{devices})\n'
        f"model.generate(inputs, max_length={request.context}, {cache})"
    )
    lost = found.lost + not_said(request) + source.cannot
    notes = ("inputs is the batch of token ids", *source.notes, *notes)
    return Exported("transformers", code, cannot=lost, notes=notes)


def _devices(request: Request) -> tuple[str, str, tuple[str, ...]]:
    """What to import, the argument that shares the model out, and how to start it then."""
    parallel = request.parallel
    sizes = {"tp_size": parallel.tp, "pp_size": parallel.pp}
    words = ", ".join(f"{name}={size}" for name, size in sizes.items() if size > 1)
    if not words:
        return "", "", ()
    start = f"start it with torchrun --nproc-per-node {parallel.tp * parallel.pp}"
    imports = "from transformers.distributed import DistributedConfig\n"
    return imports, f", distributed_config=DistributedConfig({words})", (start,)
