"""SGLang 0.5.23: pools of slots, one for full layers, one for windowed layers, one for states.

Rules read in its ``model_executor/pool_configurator.py``, ``mem_cache/kv_cache_configurator.py``
and ``configs/model_config.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

from kvik.plan.engines.base import (
    GIB,
    CacheType,
    Engine,
    ds_mla,
    ds_side,
    plain,
    up,
)
from kvik.plan.express import Language
from kvik.plan.ranks import Rank
from kvik.spec.model import LayerSpec

# swa-full-tokens-ratio: slots of the windowed pool for each slot of the full one.
SWA_SHARE, SWA_SHARE_V4 = Fraction(8, 10), Fraction(1, 10)
STATE_SHARE = Fraction(9, 19)  # mamba-full-memory-ratio 0.9: states to what full layers have
STATE_SLOTS = 3  # of a request, where prefixes are cached
# Beginnings of the families whose windowed layers have a pool of their own; all others keep every
# token in every layer.
WINDOWED = (
    "deepseek_v4", "gemma4", "gpt_oss", "laguna", "llama4", "mimo2", "mimo_v2", "step35", "step3p",
)  # fmt: skip


def _nine(values: int) -> int:
    return -(-values * 9 // 16)


def _fp4(name: str) -> CacheType:
    """Codes of 4 bits, and a byte of scale for each 16."""
    return CacheType(name, lambda k, v: _nine(k) + _nine(v), lambda dim, _: _nine(dim))


TYPES = {
    t.name: t
    for t in (
        plain("auto", 2),
        plain("bfloat16", 2),
        plain("fp8_e4m3", 1),
        plain("fp8_e5m2", 1),
        CacheType("mxfp8", lambda k, v: k + v + (k + v) // 32),
        _fp4("nvfp4"),
        _fp4("fp4_mx_block16"),
    )
} | {"fp8": plain("fp8_e4m3", 1)}


@dataclass(frozen=True)
class _Cell:
    """Bytes of a token on one device, and of a request whatever its length.

    ``full`` in layers that keep every token, ``side`` in side streams (of every token too),
    ``windowed`` in the others, of which ``window`` is the widest. ``state`` is a slot of the pool
    of states, ``fixed`` what else a request keeps.
    """

    full: int
    side: Fraction
    windowed: int
    window: int
    share: Fraction
    state: int
    fixed: int

    @property
    def split(self) -> bool:
        """Whether windowed layers have a pool beside that of the full ones."""
        return bool(self.windowed and (self.full or self.side))

    @property
    def token(self) -> Fraction:
        """Bytes of a slot of the full pool, with its share of the windowed one."""
        share = self.share if self.split else 1
        return self.full + self.side + share * self.windowed


@dataclass(frozen=True)
class _Pools:
    """Slots of the pools of one device; None where it has no such pool."""

    tokens: int | None
    windowed: int | None
    states: int | None


class Sglang(Engine):
    """A token a slot; windowed layers free what left their window, states have slots too."""

    name = "sglang"
    title = "SGLang"
    types = TYPES
    language: ClassVar = Language(
        {"bf16": "bfloat16", "fp16": "auto"},
        {
            **dict.fromkeys(("int8", "q8_0"), "fp8_e4m3"),
            **dict.fromkeys(("int4", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"), "fp4_mx_block16"),
        },
        page=1,
        coded="fp8_e4m3",
    )
    inflight_default = 8192
    rule: ClassVar[str] = (
        "slots of one token; where windowed layers have a pool of their own (Gemma-4, gpt-oss, "
        "Llama-4, MiMo-V2, Step-3, Laguna, DeepSeek-V4) it has 0.8 slots (DeepSeek-V4 0.1) for "
        "each slot of the full layers and a request holds its window plus the tokens in flight; "
        "in all other models windowed layers keep every token; states take 0.9/1.9 of the memory, "
        "three slots a request"
    )
    fit_rule: ClassVar[str] = (
        "0.88 of the device's memory (mem-fraction-static) less weights; activations and graphs "
        "live in the rest, or need more of it"
    )

    @property
    def notes(self) -> list[str]:
        """Beside what is lost, the type that is counted and what the model's layers make of it."""
        notes = [
            *super().notes,
            f"SGLang: cache type {self.kind.name}, up to {self.inflight:,} tokens in flight "
            "(chunked-prefill-size)",
        ]
        if any(y.window and y.caches_tokens for y in self._layers) and not self._hybrid:
            notes.append(
                "SGLang has no pool for this family's windowed layers: they keep every token"
            )
        if any(cell.state for cell in self._cells.values()):
            notes.append(
                "SGLang: 0.9/1.9 of the memory goes to slots for states (mamba-full-memory-ratio), "
                f"{STATE_SLOTS} a request; extra buffers for prefix caching may take more"
            )
        if any(y.kind == "latent" and y.extra for y in self._layers):
            notes.append("SGLang keeps the keys of indexers in 8 bits with a scale: 132 B for 128")
        if self._family.startswith("deepseek_v4"):
            notes.append(
                "SGLang stores the rows of DeepSeek-V4 in its own 8-bit layout whatever the cache "
                "type; its pools of open groups are not counted, so these figures are approximate"
            )
        return notes

    @property
    def _family(self) -> str:
        return self.setting.ranks[0].spec.family.replace("-", "_")

    @property
    def _hybrid(self) -> bool:
        return self._family.startswith(WINDOWED)

    @cached_property
    def _layers(self) -> list[LayerSpec]:
        return [layer for rank in self.setting.ranks for layer in rank.spec.layers]

    @cached_property
    def kind(self) -> CacheType:
        """As named; indexers, and 8-bit rows beside them, have a layout of their own."""
        found = TYPES[self.expressed.k]
        indexed = [layer for layer in self._layers if layer.extra]
        if not indexed:
            return found
        if indexed[0].kind != "latent":  # MiniMax-M3's indexers keep the model's 16 bits
            return replace(found, side=lambda dim: 2 * dim)
        packed = found.name == "fp8_e4m3" or self._family.startswith("deepseek_v4")
        return replace(found, latent=ds_mla if packed else found.latent, side=ds_side)

    @cached_property
    def _cells(self) -> dict[int, _Cell]:
        return {rank.start: self._cell(rank) for rank in self.setting.ranks}

    def _cell(self, rank: Rank) -> _Cell:
        full = windowed = window = state = fixed = 0
        for layer in rank.spec.layers:
            row = self.kind.row(layer)
            if layer.window and layer.caches_tokens and self._hybrid:
                windowed, window = windowed + row, max(window, layer.window)
            else:
                full += row
            own = sum(p.nbytes for p in layer.states if p.name in ("recurrent", "conv"))
            state, fixed = state + own, fixed + layer.state_bytes - own
        share = SWA_SHARE_V4 if self._family.startswith("deepseek_v4") else SWA_SHARE
        return _Cell(full, self._sides(rank), windowed, window, share, state, fixed)

    def _sides(self, rank: Rank) -> Fraction:
        """Side streams; with an indexer in some latent layers all of them have room for its keys
        (GLM-5.2 and later compute them in one layer of four).
        """
        extras = [e for layer in rank.spec.layers for e in layer.extra]
        found = sum((Fraction(self.kind.extra(e), e.ratio) for e in extras), Fraction())
        if extras and not any(layer.window for layer in rank.spec.layers):
            bare = sum(y.kind == "latent" and not y.extra for y in rank.spec.layers)
            found += bare * self.kind.extra(extras[0])
        return found

    def rank_bytes(self, rank: Rank, context: int) -> int:
        """Slots at the fullest moment of a request, and its states."""
        cell = self._cells[rank.start]
        context = up(context, self.expressed.page or 1)
        share = -(-context // self.setting.parallel.cp)
        held = cell.windowed * min(context, cell.window + self.inflight)
        states = STATE_SLOTS * cell.state + cell.fixed
        return cell.full * share + int(cell.side * context) + held + states

    def _pools(self, cell: _Cell, available: int) -> _Pools:
        states = windowed = None
        if cell.state:  # one slot more is padding
            states = max(0, int(STATE_SHARE * available) // cell.state - 1)
            available = max(0, available - (states + 1) * cell.state)
        if not cell.token:
            return _Pools(None, None, states)
        page = self.expressed.page or 1
        tokens = int(available / cell.token) // page * page
        if cell.split:
            windowed = int(tokens * cell.share) // page * page
        return _Pools(tokens, windowed, states)

    def pool_tokens(self, available: int, context: int) -> int | None:
        """max_total_num_tokens: slots of the full layers."""
        found = [self._pools(cell, available).tokens for cell in self._cells.values()]
        slots = [tokens * self.setting.parallel.cp for tokens in found if tokens is not None]
        return min(slots, default=None)

    def concurrency(self, available: int, context: int) -> float | None:
        """Requests that every pool holds: its slots are fixed when the engine starts."""
        found = [n for c in self._cells.values() for n in self._at_once(c, available, context)]
        return min(found, default=None)

    def _at_once(self, cell: _Cell, available: int, context: int) -> list[float]:
        pools = self._pools(cell, available)
        page = self.expressed.page or 1
        found: list[float] = []
        held = min(context, cell.window + self.inflight)
        if pools.tokens is not None and (cell.split or not cell.windowed):
            share = -(-up(context, page) // self.setting.parallel.cp)
            found.append(float(pools.tokens / (share + cell.fixed / cell.token)))
        elif pools.tokens is not None:
            found.append(pools.tokens / held)
        if pools.windowed is not None:
            # It does not start where a window and a page fill the pool.
            starts = pools.windowed > cell.window + page
            found.append(pools.windowed / held if starts else 0.0)
        if pools.states is not None:
            found.append(pools.states / STATE_SLOTS)
        return found

    def budget(self, memory: int, weights: int, activations: int) -> int:
        """The static share, or less where activations need more than the rest."""
        rest = max(memory - int(0.88 * memory), activations + GIB)
        return memory - rest - weights
