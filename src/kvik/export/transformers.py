"""transformers 5.24: the cache arguments of ``generate``."""

from __future__ import annotations

from kvik.export.base import Exported, only_one_device
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
    code = (
        "from transformers import AutoModelForCausalLM\n\n"
        f'model = AutoModelForCausalLM.from_pretrained({model!r}, dtype="{dtype}")\n'
        f"model.generate(inputs, max_length={request.context}, {cache})"
    )
    lost = found.lost + only_one_device(request, "tp", "cp", "pp")
    notes = ("inputs is the batch of token ids",)
    return Exported("transformers", code, cannot=lost, notes=notes)
