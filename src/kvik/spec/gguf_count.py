"""Parameters and bytes of a GGUF file, exactly, from its table of tensors."""

from __future__ import annotations

import re
from math import prod

from kvik.spec.fields import Fields
from kvik.spec.gguf import Header
from kvik.spec.params import Params

# Tables of which a token reads a row and nothing else.
TABLES = ("per_layer_token_embd.weight", "position_embd.weight")
MIXERS = re.compile(r"\.(attn|ssm|shortconv|indexer)[_.]")


def count_gguf(header: Header, fields: Fields) -> Params:
    """Exact counts from the tensor table."""
    sizes = {name: prod(tensor.shape) for name, tensor in header.tensors.items()}
    total = sum(sizes.values())
    experts = fields.whole("expert_count", 0)
    used = fields.whole("expert_used_count", 0) if experts else 0
    if used > experts:
        raise fields.wrong("expert_used_count", f"at most the {experts} experts")
    routed = sum(n for name, n in sizes.items() if "_exps." in name) if experts else 0
    idle = routed // experts * (experts - used) if experts else 0
    looked_up = sum(sizes.get(name, 0) for name in TABLES)
    if "output.weight" in sizes:
        looked_up += sizes.get("token_embd.weight", 0)
    return Params(
        total=total,
        active=total - idle - looked_up,
        routed=routed,
        experts=experts if routed else 0,
        experts_per_token=used if routed else 0,
        embedding=sizes.get("token_embd.weight"),
        output=sizes.get("output.weight", 0),
        per_layer=sizes.get("per_layer_token_embd.weight", 0),
        attention=sum(n for name, n in sizes.items() if MIXERS.search(name)),
        looked_up=looked_up,
        file_bytes=sum(tensor.nbytes for tensor in header.tensors.values()),
        source="counted from the tensors of the file",
    )
