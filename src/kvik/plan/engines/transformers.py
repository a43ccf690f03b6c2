"""transformers 5.24: tensors that grow with the text (``DynamicCache``), or quantized ones.

Rules read in its ``cache_utils.py``.
"""

from __future__ import annotations

from typing import ClassVar

from kvik.plan.engines.base import GIB, CacheType, Engine, expanded, plain
from kvik.plan.express import Language
from kvik.plan.ranks import Rank
from kvik.spec.model import LayerSpec

GROUP, RESIDUAL = 64, 128  # q_group_size and residual_length


def _quanto(name: str, bits: int) -> CacheType:
    """Codes, with a 16-bit scale and shift for each 64 of them."""

    def coded(values: int) -> int:
        return -(-values * bits // 8) + 4 * -(-values // GROUP)

    return CacheType(name, lambda k, v: coded(k) + coded(v), lambda d, _: coded(d))


TYPES = {
    t.name: t
    for t in (
        plain("float32", 4),
        plain("float16", 2),
        plain("bfloat16", 2),
        _quanto("hqq-8", 8),
        _quanto("quanto-4", 4),
        _quanto("quanto-2", 2),
    )
}


class Transformers(Engine):
    """The tokens themselves; windowed layers keep their window less one."""

    name = "transformers"
    title = "transformers"
    types = TYPES
    language: ClassVar = Language(
        {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"},
        {
            **dict.fromkeys(("int8", "q8_0"), "hqq-8"),
            **dict.fromkeys(("int4", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"), "quanto-4"),
        },
    )
    expands = True
    rule: ClassVar[str] = (
        "the tokens themselves; windowed and chunked layers keep their window less one; quantized "
        "caches keep the newest 128 tokens in 16 bits; convolutions keep one column more, states "
        "are float32"
    )
    fit_rule: ClassVar[str] = (
        "device memory less 0.5 GiB, weights, activations; a step copies one layer's cache"
    )

    @property
    def notes(self) -> list[str]:
        """Beside what is lost, the type that is counted."""
        return [*super().notes, f"transformers: cache type {self.expressed.k}, DynamicCache"]

    def step_tokens(self, context: int) -> int:
        """A prompt is computed at once."""
        return context

    def rank_bytes(self, rank: Rank, context: int) -> int:
        """All layers of one sequence."""
        share = -(-context // self.setting.parallel.cp)
        return sum(self._layer(rank, layer, share) for layer in rank.spec.layers)

    def _layer(self, rank: Rank, own: LayerSpec, tokens: int) -> int:
        total = _state_bytes(own)
        layer = own
        if own.kind == "latent" and own.expanded and expanded(rank.spec.family):
            k, v = own.expanded
            layer = LayerSpec("full", own.heads, own.heads, k, v)
        if not layer.caches_tokens:
            return total
        held = min(tokens, layer.window - 1) if layer.window else tokens
        kind, half = TYPES[self.expressed.k], TYPES["float16"]
        newest = min(held, RESIDUAL) if "-" in kind.name else 0
        total += (held - newest) * kind.row(layer) + newest * half.row(layer)
        return total + sum(half.extra(e) * e.rows(tokens) for e in layer.extra)

    def budget(self, memory: int, weights: int, activations: int) -> int:
        """Half a GiB is the device's context."""
        return memory - GIB // 2 - weights - activations


def _state_bytes(layer: LayerSpec) -> int:
    total = layer.state_bytes - sum(part.nbytes for part in layer.states)
    for part in layer.states:
        columns = part.shape[0] if part.name == "conv" else 0
        values = part.nbytes // part.item_bytes
        if columns:
            total += values // columns * (columns + 1) * part.item_bytes
        else:
            total += values * (4 if part.name == "recurrent" else part.item_bytes)
    return total
