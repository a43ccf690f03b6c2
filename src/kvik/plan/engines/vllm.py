"""vLLM 0.33: blocks, groups of layers that share them, pages made alike.

Rules read in its ``v1/core/kv_cache_utils.py`` and ``v1/kv_cache_interface.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from kvik.errors import KvikError
from kvik.plan.engines.base import (
    GIB,
    CacheType,
    Engine,
    ds_mla,
    ds_side,
    expanded,
    plain,
    up,
)
from kvik.plan.express import Language
from kvik.plan.ranks import Parallel, Rank
from kvik.spec.model import LayerSpec, ModelSpec

BLOCK = 16
LATENT_BLOCK = 64  # the kernels of MLA
INDEXED_BLOCK = 128  # grouped heads with an indexer (MiniMax-M3)


def _scaled(name: str, per_value: float) -> CacheType:
    """Codes with a float32 scale for K and one for V of each token and head."""
    return CacheType(name, lambda k, v: math.ceil(k * per_value) + math.ceil(v * per_value) + 8)


def _turbo(name: str, k_bits: int, k_extra: int, v_bits: int) -> CacheType:
    """TurboQuant: codes, a norm for K, scale and zero for V; an even number of bytes."""

    def head(k: int, v: int) -> int:
        return up(-(-k * k_bits // 8) + k_extra + -(-v * v_bits // 8) + 4, 2)

    return CacheType(name, head)


TYPES = {
    t.name: t
    for t in (
        plain("float32", 4),
        plain("auto", 2),
        plain("float16", 2),
        plain("bfloat16", 2),
        plain("fp8", 1),
        plain("fp8_e4m3", 1),
        plain("fp8_e5m2", 1),
        plain("fp8_inc", 1),
        CacheType("fp8_ds_mla", None, ds_mla, ds_side),
        _scaled("fp8_per_token_head", 1),
        _scaled("int8_per_token_head", 1),
        _scaled("int4_per_token_head", 0.5),
        CacheType("nvfp4", lambda k, v: -(-k * 9 // 16) + -(-v * 9 // 16)),
        # The same layout; which of two scales a block takes is decided by its error.
        CacheType("nvfp4_4over6", lambda k, v: -(-k * 9 // 16) + -(-v * 9 // 16)),
        # Codes of 4 bits and a byte of scale for each 32.
        CacheType("ultraquant_4bit", lambda k, v: -(-k * 17 // 32) + -(-v * 17 // 32)),
        _turbo("turboquant_k8v4", 8, 0, 4),
        _turbo("turboquant_4bit_nc", 4, 2, 4),
        _turbo("turboquant_k3v4_nc", 3, 2, 4),
        _turbo("turboquant_3bit_nc", 3, 2, 3),
    )
}
# GLM-5's indexers keep their keys in 16 bits beside 8-bit rows.
GLM_DSA = replace(TYPES["fp8_ds_mla"], side=lambda dim: 2 * dim)
STATE_PAGES = 2  # of a request: mamba-cache-mode align, where prefixes are cached
SKIPPED = 2  # layers at either end that TurboQuant leaves in 16 bits


@dataclass(frozen=True)
class Cached:
    """What one layer asks of the block pool: ``block`` tokens take ``page`` bytes.

    A request holds ``held`` blocks of a state.
    """

    kind: str
    block: int
    page: int
    window: int = 0
    held: int = 1

    def blocks(self, context: int, inflight: int, cp: int) -> int:
        """Blocks that a request of ``context`` tokens needs at most."""
        if self.kind == "state":
            return self.held
        if self.kind == "full":
            share = -(-context // cp)
            return -(-share // self.block)
        if self.kind == "chunked":
            return -(-min(self.window + inflight, context) // self.block)
        # The newest tokens may begin anywhere in their first block.
        return -(-min(self.window - 1 + inflight, context) // self.block) + 1


class Vllm(Engine):
    """Blocks of 16 tokens; layers of one kind in groups of one size; one page size for all."""

    name = "vllm"
    title = "vLLM"
    types = TYPES
    language: ClassVar = Language(
        {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"},
        {
            "int8": "int8_per_token_head",
            "q8_0": "int8_per_token_head",
            "int4": "int4_per_token_head",
            **dict.fromkeys(("q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"), "int4_per_token_head"),
        },
        skips=True,
        page=16,
        coded="fp8",
    )
    unsized = ("nvfp4_ds_mla", "octave_k3v4", "octave_k3v3", "octave_k3v3_compact")
    expands = True
    rule: ClassVar[str] = (
        "blocks of 16 tokens (MLA 64); a windowed layer reserves its window less one plus the "
        "tokens in flight, and one block more; pages of all layers are made as large as the "
        "largest, attention blocks as large as a recurrent state"
    )
    fit_rule: ClassVar[str] = (
        "0.92 of the device's memory (gpu-memory-utilization) less weights, activations and "
        "0.75 GiB for CUDA graphs and libraries"
    )

    @classmethod
    def check(cls, spec: ModelSpec, parallel: Parallel) -> None:
        """Context parallelism is within tensor parallelism."""
        tp, cp = parallel.tp, parallel.cp
        if tp % cp:
            raise KvikError(f"vLLM's --decode-context-parallel-size {cp} must divide --tp {tp}")

    @property
    def inflight(self) -> int:
        """max-num-batched-tokens: 8,192; on devices below 70 GiB, and on any A100, 2,048."""
        memory, device = self.setting.memory, self.setting.device or ""
        small = (memory is not None and memory < 70 * GIB) or "a100" in device.casefold()
        return self.setting.inflight or (2048 if small else 8192)

    @property
    def notes(self) -> list[str]:
        """Beside what is lost: the type that is counted, and what --cp means."""
        notes = super().notes
        notes.append(
            f"vLLM: cache type {self.kind.name}, up to {self.inflight:,} tokens in flight "
            "(max-num-batched-tokens)"
        )
        if self.setting.parallel.cp > 1:
            notes.append("vLLM: --cp is --decode-context-parallel-size; it needs no more devices")
        notes += self._layer_notes()
        for rank in self.setting.ranks[:1]:
            groups, _ = self.groups(rank)
            if len(groups) > 1:
                notes.append(
                    f"vLLM: {len(groups)} groups of layers share the blocks; before 0.24 its log "
                    "named the blocks of one group as tokens, which is less than fits"
                )
        return notes

    def _layer_notes(self) -> list[str]:
        """What the model's kinds of layers make of the figures."""
        notes = []
        if any(c.held > 1 for rank in self.setting.ranks for c in self.groups(rank)[0]):
            notes.append(
                f"vLLM: a request holds {STATE_PAGES} pages of every group of states, because "
                "prefixes are cached; --no-enable-prefix-caching holds one"
            )
        if self._family == "deepseek_v4":
            notes.append(
                "vLLM lays DeepSeek-V4 out in larger pages than are counted here: a report "
                "(vllm#44376) needed 6.66 GiB on each of two devices for 30,000 tokens; do not "
                "rely on these figures"
            )
        elif self._family == "glm_moe_dsa":
            notes.append(
                "vLLM: keys of GLM's indexers are counted at 16 bits (256 B for 128 values); two "
                "logs (vllm#49696, LMCache#3339) show 132 B"
            )
        elif self._sparse:
            notes.append("vLLM keeps the keys of indexers in 8 bits with a scale: 132 B for 128")
        return notes

    @property
    def kind(self) -> CacheType:
        """As named; rows and indexers of its sparse kernels have a layout of their own."""
        found = TYPES[self.expressed.k]
        if not self._sparse:
            return found
        if self._family == "glm_moe_dsa":
            return GLM_DSA if found.name.startswith("fp8") else found
        if found.name.startswith("fp8"):
            return TYPES["fp8_ds_mla"]
        # DeepSeek-V4 has no 16-bit layout to go by: its side streams stay as they were asked for.
        return found if self._family == "deepseek_v4" else replace(found, side=ds_side)

    @property
    def _family(self) -> str:
        return self.setting.ranks[0].spec.family

    @cached_property
    def _sparse(self) -> bool:
        """Whether latent rows have an indexer."""
        layers = (layer for rank in self.setting.ranks for layer in rank.spec.layers)
        return any(layer.kind == "latent" and layer.extra for layer in layers)

    def _expanded(self, rank: Rank, layer: LayerSpec) -> LayerSpec | None:
        """The layer with expanded heads where vLLM has no latent cache for the family."""
        if not expanded(rank.spec.family) or layer.expanded is None or layer.kind != "latent":
            return None
        width = max(layer.expanded)  # V is padded to K's width
        return LayerSpec("full", layer.heads, layer.heads, width, width)

    def cached(self, rank: Rank) -> list[Cached]:
        """Every layer and side stream that takes blocks, with its own page size."""
        found: list[Cached] = []
        skipped = self._skipped(rank)
        states: list[int] = []
        for index, own in enumerate(rank.spec.layers):
            layer = self._expanded(rank, own) or own
            kind = self.kind
            if rank.start + index in skipped:
                kind = TYPES["auto"]
            if matrices := sum(p.nbytes for p in layer.states if p.name in ("recurrent", "conv")):
                states.append(matrices)
            if not layer.caches_tokens:
                continue
            block = self._block(layer)
            window = layer.window or 0
            shape = layer.kind if layer.kind in ("sliding", "chunked") else "full"
            shape = "sliding" if window and shape == "full" else shape
            found.append(Cached(shape, block, block * kind.row(layer), window))
            for extra in layer.extra:
                page = math.ceil(block * kind.extra(extra) / extra.ratio)
                found.append(Cached("full", block, page))
        return self._with_states(found, states, self._state_pages)

    @cached_property
    def _state_pages(self) -> int:
        """By default it caches no prefixes of models without attention."""
        layers = (layer for rank in self.setting.ranks for layer in rank.spec.layers)
        return STATE_PAGES if any(layer.caches_tokens for layer in layers) else 1

    def _skipped(self, rank: Rank) -> set[int]:
        """Layers in 16 bits: those that the recipe names, and TurboQuant's first and last."""
        count = max(other.start + len(other.spec.layers) for other in self.setting.ranks)
        found = {layer for scope in self.expressed.skipped for layer in scope.layers(count)}
        if self.kind.name.startswith("turbo"):
            found |= {*range(SKIPPED), *range(count - SKIPPED, count)}
        return found

    def _block(self, layer: LayerSpec) -> int:
        if self.expressed.page is not None:
            return self.expressed.page
        if layer.kind == "latent":
            return LATENT_BLOCK
        return INDEXED_BLOCK if layer.extra else BLOCK

    @staticmethod
    def _with_states(found: list[Cached], states: list[int], held: int) -> list[Cached]:
        """A state is a page: attention blocks grow to its size, then it is padded to theirs."""
        if not states:
            return found
        state = max(states)
        rows = [(c, c.page // c.block) for c in found]
        if rows:
            least = min(row for _, row in rows)
            unit = max(c.block for c in found)
            block = up(-(-state // least), unit)
            found = [Cached(c.kind, block, row * block, c.window) for c, row in rows]
            state = max(state, *(c.page for c in found))
        return found + [Cached("state", 1, state, held=held)] * len(states)

    @cached_property
    def _groups(self) -> dict[int, tuple[list[Cached], int]]:
        return {rank.start: self._grouped(rank) for rank in self.setting.ranks}

    def groups(self, rank: Rank) -> tuple[list[Cached], int]:
        """Groups of layers that share block ids, and the bytes of one block id."""
        return self._groups[rank.start]

    def _grouped(self, rank: Rank) -> tuple[list[Cached], int]:
        """Of equal kind: one group with all layers. Of different kinds: groups of one size, made so
        that all pages are equally large.
        """
        cached = self.cached(rank)
        if not cached:
            return [], 0
        if len({(c.kind, c.window, c.block) for c in cached}) == 1:
            return [cached[0]], sum(c.page for c in cached)
        if len({(c.kind, c.window) for c in cached}) == 1:
            block = max(c.block for c in cached)
            pages = (c.page * block // c.block for c in cached)
            return [Cached(cached[0].kind, block, 0, cached[0].window)], sum(pages)
        page = max(c.page for c in cached)
        alike: dict[Cached, int] = {}
        for c in cached:
            times = page // c.page if c.kind != "state" else 1
            same = replace(c, block=c.block * times, page=page)
            alike[same] = alike.get(same, 0) + 1
        size, largest = min(alike.values()), max(alike.values())
        size = largest if largest < size * 1.25 else size
        groups = [c for c, count in alike.items() for _ in range(-(-count // size))]
        return groups, page * size

    def _request_blocks(self, rank: Rank, context: int) -> tuple[int, int]:
        groups, nbytes = self.groups(rank)
        cp = self.setting.parallel.cp
        blocks = sum(g.blocks(context, self.inflight, cp) for g in groups)
        parts = [part for layer in rank.spec.layers for part in layer.states]
        fixed = sum(p.nbytes for p in parts if p.name in ("cross", "compressor"))
        return blocks + (-(-fixed // nbytes) if nbytes else 0), nbytes

    def rank_bytes(self, rank: Rank, context: int) -> int:
        """Blocks of every group, each as large as all layers of a group take."""
        blocks, nbytes = self._request_blocks(rank, context)
        return blocks * nbytes

    def concurrency(self, available: int, context: int) -> float | None:
        """Whole blocks of the pool over the blocks of one request."""
        found = []
        for rank in self.setting.ranks:
            blocks, nbytes = self._request_blocks(rank, context)
            if blocks:
                found.append(available // nbytes / blocks)
        return min(found, default=None)

    def pool_tokens(self, available: int, context: int) -> int | None:
        """Tokens that the log names: whole blocks, or requests times their length where mixed."""
        found = []
        for rank in self.setting.ranks:
            groups, nbytes = self.groups(rank)
            if len(groups) == 1 and groups[0].kind == "full":
                blocks = available // nbytes
                found.append(blocks * groups[0].block * self.setting.parallel.cp)
            elif groups:
                blocks, nbytes = self._request_blocks(rank, context)
                found.append(available // nbytes * context // blocks)
        return min(found, default=None)

    def budget(self, memory: int, weights: int, activations: int) -> int:
        """What its profiling run would leave."""
        return int(0.92 * memory) - weights - activations - 3 * GIB // 4
