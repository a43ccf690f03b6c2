"""transformers 5.24: tensors that grow with the text (``DynamicCache``), or quantized ones.

Rules read in its ``cache_utils.py``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import ClassVar

from kvik.errors import KvikError
from kvik.plan.engines.base import GIB, CacheType, Engine, expanded, plain
from kvik.plan.express import Expressed, Language
from kvik.plan.ranks import Parallel, Rank
from kvik.spec.model import LayerSpec, ModelSpec

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
    lacks = ("cp",)
    inflight_words = "changes nothing: a prompt is computed at once"
    rule: ClassVar[str] = (
        "the tokens themselves; windowed and chunked layers keep their window less one; quantized "
        "caches keep the newest 128 tokens in 16 bits; convolutions keep one column more, states "
        "are float32"
    )
    fit_rule: ClassVar[str] = (
        "device memory less 0.5 GiB, weights, activations; a step copies one layer's cache"
    )

    @cached_property
    def expressed(self) -> Expressed:
        """The recipe in its words; 16 bits where it has no quantized cache for the model."""
        found = super().expressed
        layers = [layer for rank in self.setting.ranks for layer in rank.spec.layers]
        other = {_words(layer) for layer in layers} - {""}
        if "-" not in found.k or not other:
            return found
        why = (
            f"a quantized cache is for full attention only, and this model has "
            f"{' and '.join(sorted(other))} layers"
        )
        if self.setting.recipe is None:
            raise KvikError(f"{found.k}: {why}; write fp16 or bf16")
        lost = [reason for reason in found.lost if found.k not in reason]
        lost.append(f"{self.setting.recipe}: {why}; float16 is taken")
        return replace(found, k="float16", v="float16", lost=tuple(lost))

    @classmethod
    def check(cls, spec: ModelSpec, parallel: Parallel) -> None:
        """Its tensor parallelism cannot put a KV head on several devices."""
        tp = parallel.tp
        for layer in spec.layers:
            if layer.caches_tokens and layer.kind != "latent" and layer.kv_heads % tp:
                raise KvikError(
                    f"transformers cannot share {layer.kv_heads} KV heads out over --tp {tp}; "
                    "give a divisor"
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


def _words(layer: LayerSpec) -> str:
    """What keeps a layer out of a quantized cache; empty where nothing does."""
    if layer.kind in ("sliding", "chunked", "shared"):
        return layer.kind
    if layer.kind == "state" or layer.states:
        return "recurrent"
    return "indexed" if layer.extra else ""


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
