"""llama.cpp: cells for the whole context at once, per sequence.

Rules read in its ``llama-kv-cache.cpp``, ``llama-kv-cache-iswa.cpp`` and
``llama-memory-recurrent.cpp``.
"""

from __future__ import annotations

from typing import ClassVar

from kvik.plan.engines.base import GIB, CacheType, Engine, expanded, up
from kvik.plan.express import Language
from kvik.plan.ranks import Rank
from kvik.spec.model import LayerSpec

CELLS = 256  # contexts are padded to whole runs of cells
BLOCKS = {  # elements and bytes of a block
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}


def row(name: str, values: int) -> int:
    """Bytes of ``values`` values in whole blocks."""
    elements, nbytes = BLOCKS[name]
    return -(-values // elements) * nbytes


def _type(name: str) -> CacheType:
    return CacheType(name, lambda k, v: row(name, k) + row(name, v), lambda d, _: row(name, d))


class LlamaCpp(Engine):
    """Every sequence has cells for its whole context, windowed layers for window and batch."""

    name = "llamacpp"
    title = "llama.cpp"
    types: ClassVar = {name: _type(name) for name in BLOCKS}
    language: ClassVar = Language(
        {"fp32": "f32", "fp16": "f16", **{name: name for name in BLOCKS}},
        {"int8": "q8_0", "int4": "q4_1"},
        pairs=True,
    )
    inflight_default = 512
    expands = True
    lacks = ("tp", "cp")
    rule: ClassVar[str] = (
        "the context in cells, padded to 256, K and V in blocks of 32; windowed layers have cells "
        "for window plus micro-batch (512), padded to 256; states and convolutions in float32"
    )
    fit_rule: ClassVar[str] = "device memory less 1 GiB (-fitt), weights and compute buffer"

    @property
    def notes(self) -> list[str]:
        """Beside what is lost, the types that are counted."""
        found = self.expressed
        ranks = self.setting.ranks
        notes = [
            "llama.cpp applies no window to this model: every layer keeps the whole context"
            for rank in ranks
            if self.name in rank.spec.unwindowed and any(y.window for y in rank.spec.layers)
        ]
        return [
            *super().notes,
            *notes[:1],
            f"llama.cpp: -ctk {found.k} -ctv {found.v}, micro-batch {self.inflight:,} (-ub)",
        ]

    def rank_bytes(self, rank: Rank, context: int) -> int:
        """One sequence's share of the buffers that the log names."""
        return sum(self.layer_bytes(rank, layer, context) for layer in rank.spec.layers)

    def layer_bytes(self, rank: Rank, layer: LayerSpec, context: int) -> int:
        """Cells of one layer and its state."""
        total = _state_bytes(layer)
        if not layer.caches_tokens:
            return total
        cells = up(-(-context // self.setting.parallel.cp), CELLS)
        for extra in layer.extra:
            total += row(self.expressed.k, extra.dim) * (cells // extra.ratio)
        if layer.window and self.name not in rank.spec.unwindowed:
            cells = min(cells, up(min(cells, layer.window + self.inflight), CELLS))
        return total + cells * self._row(rank, layer)

    def _row(self, rank: Rank, layer: LayerSpec) -> int:
        k, v = self.expressed.k, self.expressed.v
        if layer.kind == "latent":
            if not expanded(rank.spec.family) or layer.expanded is None:
                return row(k, layer.k_dim)
            return sum(
                row(kind, layer.heads * dim)
                for kind, dim in zip((k, v), layer.expanded, strict=True)
            )
        return row(k, layer.kv_heads * layer.k_dim) + row(v, layer.kv_heads * layer.v_dim)

    def budget(self, memory: int, weights: int, activations: int) -> int:
        """The margin that -fit leaves is 1 GiB."""
        return memory - GIB - weights - activations


def _state_bytes(layer: LayerSpec) -> int:
    """Recurrent states and convolutions are float32 whatever the cache type."""
    own = layer.state_bytes - sum(part.nbytes for part in layer.states)
    return own + sum(
        part.nbytes // part.item_bytes * (4 if part.name != "cross" else 2) for part in layer.states
    )
