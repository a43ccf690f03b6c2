"""Decoder layers one after another, their attention included, in one call of the native library.

csrc/include/kvik_layers.h says what is computed: the same bits as layer by layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, addressof, c_int64, c_void_p
from dataclasses import dataclass

from torch import Tensor

from kvik.errors import KvikError
from kvik.ops.native_attention import Place
from kvik.ops.native_linear import LayerEnd, Projection, checked, packed_library


class _Layer(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("before", "after", "batch", "layer")),
        *((name, c_void_p) for name in ("cos", "sin", "second_cos", "second_sin", "scratch")),
        ("scratch_stride", c_int64),
    )


@dataclass(frozen=True)
class Ends:
    """What a layer does before its cache and after it."""

    before: Projection
    after: LayerEnd


class LayerRun:
    """Layers of packed weights, from the input of the first to the output of the last."""

    def __init__(self, layers: Sequence[Ends]) -> None:
        self._layers = tuple(layers)
        if not layers:
            raise KvikError("a run has at least one layer")
        if {size for each in layers for size in (each.before.cols, each.after.hidden)} != {
            layers[0].before.cols
        }:
            raise KvikError("layers that follow one another have one hidden size")
        self._call = packed_library().kvik_layers
        # What does not change from step to step; every call works on a copy.
        self._structs = (_Layer * len(self._layers))()
        for struct, each in zip(self._structs, self._layers, strict=True):
            struct.before, struct.after = each.before.address, each.after.address

    def __call__(self, x: Tensor, places: Sequence[Place]) -> Tensor:
        """[N, hidden] from x [N, hidden]; each layer writes its keys and values at its place."""
        n = checked(x, self._layers[0].before.cols)
        structs = type(self._structs).from_buffer_copy(self._structs)
        for struct, each, place in zip(structs, self._layers, places, strict=True):
            layer, batch = place.layer, place.batch
            if (each.before.widths, each.after.cols, n) != (layer.widths, layer.mixed, batch.rows):
                raise KvikError(
                    f"layer {layer.plan.index} caches {layer.widths} channels of {batch.rows} "
                    f"tokens; its weights give {each.before.widths} of {n}"
                )
            struct.batch, struct.layer = batch.address, layer.address
            place.fill(struct)
        out = x.clone()
        if n:
            self._call(addressof(structs), len(structs), n, out.data_ptr())
        return out
