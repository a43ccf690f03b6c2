"""Layers of packed weights one after another, in one native call where the cache allows it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from kvik.models.packed_layer import PackedLayer
from kvik.models.parts import StepCache
from kvik.ops.native_layers import LayerRun

if TYPE_CHECKING:
    from kvik.models.decoder import Layer

# More rows spend their time in the kernels, and layer by layer Ctrl-C is heard sooner.
AT_ONCE = 32


@dataclass(frozen=True)
class PackedRun:
    """Computes what ``layers`` do one after another: a step's Python does not grow with them.

    The input is the run's to write over.
    """

    layers: tuple[PackedLayer, ...]

    def __call__(self, x: Tensor, cache: StepCache) -> Tensor:
        places = cache.places(self._indices) if len(x) <= AT_ONCE else None
        if places is not None:
            return self._native(x, places)
        for layer in self.layers:
            x = layer(x, cache)
        return x

    @cached_property
    def _indices(self) -> tuple[int, ...]:
        return tuple(layer.index for layer in self.layers)

    @cached_property
    def _native(self) -> LayerRun:
        return LayerRun([layer.ends for layer in self.layers])


def runs(layers: Iterable[Layer | PackedLayer]) -> list[Layer | PackedRun]:
    """The layers in their order, packed neighbours together."""
    found: list[Layer | PackedRun] = []
    for layer in layers:
        if not isinstance(layer, PackedLayer):
            found.append(layer)
        elif found and isinstance(last := found[-1], PackedRun):
            found[-1] = PackedRun((*last.layers, layer))
        else:
            found.append(PackedRun((layer,)))
    return found
