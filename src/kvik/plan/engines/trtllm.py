"""TensorRT-LLM: blocks of 32 tokens, a pool for every window length."""

from __future__ import annotations

from typing import ClassVar

from kvik.plan.engines.base import GIB, CacheType, Engine, plain, up
from kvik.plan.express import Language
from kvik.plan.ranks import Rank
from kvik.spec.model import LayerSpec

BLOCK, INDEXED_BLOCK = 32, 64
TYPES = {
    t.name: t
    for t in (
        plain("auto", 2),
        plain("fp8", 1),
        CacheType("nvfp4", lambda k, v: -(-k * 9 // 16) + -(-v * 9 // 16)),
    )
}


class TrtLlm(Engine):
    """Whole blocks; a window holds its own tokens and one block more, so that it can slide."""

    name = "trtllm"
    title = "TensorRT-LLM"
    types = TYPES
    language: ClassVar = Language(
        {"fp16": "auto", "bf16": "auto"},
        {
            **dict.fromkeys(("int8", "q8_0"), "fp8"),
            **dict.fromkeys(("int4", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"), "nvfp4"),
        },
        windows=True,
        page=8,
        coded="fp8",
    )
    inflight_words = "(max_num_tokens) changes the activations only"
    rule: ClassVar[str] = (
        "blocks of 32 tokens (64 with an indexer); a windowed layer has whole blocks for its "
        "window and one more"
    )
    fit_rule: ClassVar[str] = (
        "0.9 of what weights and activations leave of the device's memory "
        "(free_gpu_memory_fraction)"
    )

    @property
    def notes(self) -> list[str]:
        """Beside what is lost, the type that is counted."""
        return [*super().notes, f"TensorRT-LLM: cache type {self.kind.name}"]

    def _block(self, rank: Rank) -> int:
        if self.expressed.page is not None:
            return self.expressed.page
        return INDEXED_BLOCK if any(layer.extra for layer in rank.spec.layers) else BLOCK

    def rank_bytes(self, rank: Rank, context: int) -> int:
        """Blocks of every layer, and its state."""
        block = self._block(rank)
        share = -(-context // self.setting.parallel.cp)
        return sum(self._layer(layer, share, block) for layer in rank.spec.layers)

    def _layer(self, layer: LayerSpec, tokens: int, block: int) -> int:
        total = layer.state_bytes
        if not layer.caches_tokens:
            return total
        whole = up(tokens, block)
        windows = [w for w in (layer.window, self.expressed.window) if w]
        held = min(whole, up(min(windows), block) + block) if windows else whole
        sides = sum(self.kind.extra(e) * (whole // e.ratio) for e in layer.extra)
        return total + held * self.kind.row(layer) + sides

    def pool_tokens(self, available: int, context: int) -> int | None:
        """Whole blocks of one growing request."""
        longest = self.longest(available)
        blocks = max(self._block(rank) for rank in self.setting.ranks)
        return None if longest is None else longest // blocks * blocks

    def budget(self, memory: int, weights: int, activations: int) -> int:
        """A tenth of the free memory stays free; half a GiB is the runtime's."""
        return int(0.9 * (memory - weights - activations - GIB // 2))
