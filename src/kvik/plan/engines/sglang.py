"""SGLang 0.5.23: pools of single tokens, one for full layers and one for windowed layers.

Rules read in its ``model_executor/pool_configurator.py`` and ``mem_cache``.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

from kvik.plan.engines.base import GIB, CacheType, Engine, latent_kind, plain, up
from kvik.plan.express import Language
from kvik.plan.ranks import Rank

SWA_SHARE = 0.8  # swa-full-tokens-ratio: tokens of the windowed pool for each of the full one


def _fp4(name: str) -> CacheType:
    """Codes of four bits, and a byte of scale for each 16; latent rows too."""

    def coded(values: int) -> int:
        return -(-values * 9 // 16)

    return CacheType(name, lambda k, v: coded(k) + coded(v), lambda d, _: coded(d))


TYPES = {
    t.name: t
    for t in (
        plain("auto", 2),
        plain("bfloat16", 2),
        plain("fp8_e4m3", 1),
        plain("fp8_e5m2", 1),
        *(_fp4(name) for name in ("nvfp4", "fp4_mx_block16")),
    )
} | {"fp8": plain("fp8_e4m3", 1)}


class Sglang(Engine):
    """A token a slot; windowed layers free what left their window, states have slots too."""

    name = "sglang"
    title = "SGLang"
    types = TYPES
    unmeasured = ("mxfp8",)
    latent_type = "fp8_e4m3"
    language: ClassVar = Language(
        {"bf16": "bfloat16", "fp16": "auto"},
        {
            **dict.fromkeys(("int8", "q8_0"), "fp8_e4m3"),
            **dict.fromkeys(("int4", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"), "fp4_mx_block16"),
        },
        page=1,
    )
    inflight_default = 8192
    rule: ClassVar[str] = (
        "slots of one token; a windowed layer holds its window plus the tokens in flight; the "
        "pool of windowed layers has 0.8 slots for each slot of the full layers"
    )
    fit_rule: ClassVar[str] = (
        "0.88 of the device's memory (mem-fraction-static) less weights; activations and graphs "
        "live in the rest, or need more of it"
    )

    @property
    def notes(self) -> list[str]:
        """Beside what is lost, the type that is counted."""
        return [
            *super().notes,
            f"SGLang: cache type {self.kind.name}, up to {self.inflight:,} tokens in flight "
            "(chunked-prefill-size)",
        ]

    @property
    def kind(self) -> CacheType:
        """As named, or fp8 where that holds no latent rows."""
        return latent_kind(self, TYPES[self.expressed.k], "fp8_e4m3")

    @cached_property
    def _by_rank(self) -> dict[int, tuple[int, dict[int, int], int]]:
        return {rank.start: self._count(rank) for rank in self.setting.ranks}

    def _rows(self, rank: Rank) -> tuple[int, dict[int, int], int]:
        return self._by_rank[rank.start]

    def _count(self, rank: Rank) -> tuple[int, dict[int, int], int]:
        """Bytes of a token in full layers and in windowed ones by window, and of side streams."""
        full, side, windows = 0, 0, dict[int, int]()
        for layer in rank.spec.layers:
            row = self.kind.row(layer)
            if layer.window and layer.caches_tokens:
                windows[layer.window] = windows.get(layer.window, 0) + row
            else:
                full += row
            side += sum(self.kind.extra(e) // e.ratio for e in layer.extra)
        return full, windows, side

    def rank_bytes(self, rank: Rank, context: int) -> int:
        """Slots at the fullest moment of a request, and its state."""
        full, windows, side = self._rows(rank)
        context = up(context, self.expressed.page or 1)
        share = -(-context // self.setting.parallel.cp)
        held = sum(row * min(context, w + self.inflight) for w, row in windows.items())
        return full * share + side * context + held + sum(y.state_bytes for y in rank.spec.layers)

    def pool_tokens(self, available: int, context: int) -> int | None:
        """max_total_num_tokens: slots of the full layers."""
        found = []
        for rank in self.setting.ranks:
            full, windows, side = self._rows(rank)
            cell = (full + side) + sum(windows.values()) * (SWA_SHARE if full else 1)
            if cell:
                found.append(int(available / cell) * self.setting.parallel.cp)
        return min(found, default=None)

    def budget(self, memory: int, weights: int, activations: int) -> int:
        """The static share, or less where activations need more than the rest."""
        rest = max(memory - int(0.88 * memory), activations + GIB)
        return memory - rest - weights
