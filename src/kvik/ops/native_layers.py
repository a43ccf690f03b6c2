"""Decoder layers one after another, their attention included, in one call of the native library.

csrc/include/kvik_layers.h says what is computed: the same bits as layer by layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, addressof, c_int64, c_void_p
from dataclasses import dataclass

from torch import Tensor

from kvik.errors import KvikError
from kvik.ops.native_attention import SHARED, NativeLayer, Place
from kvik.ops.native_linear import LayerEnd, Projection, checked, packed_library


class _Maps(Structure):
    _fields_ = (("before", c_void_p), ("after", c_void_p))


class _Store(Structure):
    _fields_ = (("layer", c_void_p), ("place", c_int64))


class _Place(Structure):
    _fields_ = (("batch", c_void_p), *SHARED)


@dataclass(frozen=True)
class Ends:
    """What a layer does before its cache and after it."""

    before: Projection
    after: LayerEnd


class LayerStores:
    """Layers one after another as a cache stores them; no step changes anything of it.

    Layer i has the place ``which[i]`` of those that a step gives.
    """

    def __init__(self, layers: Sequence[NativeLayer], which: Sequence[int]) -> None:
        self.layers, self.count = tuple(layers), max(which) + 1
        self.widths = tuple((layer.widths, layer.mixed) for layer in layers)
        stores = (_Store(layer.address, place) for layer, place in zip(layers, which, strict=True))
        self._structs = (_Store * len(layers))(*stores)
        self.address = addressof(self._structs)
        # ctypes makes a type anew when nobody holds it.
        self.places = _Place * self.count


class Places:
    """Where one step finds the tokens of layers one after another: each place serves several."""

    def __init__(self, stores: LayerStores, places: Sequence[Place]) -> None:
        if len(places) != stores.count or len({place.batch.rows for place in places}) != 1:
            raise KvikError(f"these layers have {stores.count} places of one step")
        self.stores, self.rows = stores, places[0].batch.rows
        self._keep = tuple(places)
        self._structs = stores.places(*(_Place(p.batch.address, *p.shared) for p in places))
        self.address = addressof(self._structs)


class LayerRun:
    """Layers of packed weights, from the input of the first to the output of the last."""

    def __init__(self, layers: Sequence[Ends]) -> None:
        self._layers = tuple(layers)
        if not layers:
            raise KvikError("a run has at least one layer")
        self._cols = layers[0].before.cols
        if {size for each in layers for size in (each.before.cols, each.after.hidden)} != {
            self._cols
        }:
            raise KvikError("layers that follow one another have one hidden size")
        self._call = packed_library().kvik_layers
        self._widths = tuple((each.before.widths, each.after.cols) for each in layers)
        maps = (_Maps(each.before.address, each.after.address) for each in layers)
        self._structs = (_Maps * len(layers))(*maps)
        self._address = addressof(self._structs)

    def __call__(self, x: Tensor, places: Places) -> Tensor:
        """x [N, hidden], which becomes the output; each layer writes its keys and values."""
        n, stores = checked(x, self._cols), places.stores
        if n != places.rows or self._widths != stores.widths:
            raise KvikError(
                f"the cache's layers take {stores.widths} channels of {places.rows} tokens; "
                f"the weights give {self._widths} of {n}"
            )
        if n:
            at = self._address, stores.address, len(self._widths), places.address
            self._call(*at, n, x.data_ptr())
        return x
