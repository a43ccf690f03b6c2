"""A model's weights under one set of names, whatever file they come from.

Legend of the names: ``embed.weight [V, hidden]``, ``layers.{i}.{q,k,v,o}_proj.weight [out, in]``,
``layers.{i}.{gate,up,down}_proj.weight``, ``layers.{i}.{attn,ffn}_norm.weight``, ``norm.weight``;
by spec ``lm_head.weight``, ``{q,k}_norm``, ``post_{attn,ffn}_norm`` and the biases of attention;
in layers with experts ``layers.{i}.router.weight [experts, hidden]`` and
``layers.{i}.experts.{e}.{gate,up,down}_proj.weight`` instead of the one network.
A norm's weight is the factor that multiplies; Q and K rows are laid out for "half" RoPE.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from torch import Tensor

from kvik.errors import ModelError
from kvik.models.gguf_weights import GgufWeights
from kvik.models.parts import Weight
from kvik.models.places import Place, Shape, expected_shapes
from kvik.models.safetensors_weights import SafetensorsWeights
from kvik.ops.native_linear import Packed
from kvik.ops.shelf import Shelf
from kvik.spec import ModelSpec
from kvik.spec.load import is_config, locate

__all__ = ["Shape", "WeightFile", "expected_shapes", "load_weights"]


class WeightFile(Protocol):
    """One kind of file: names and shapes as it has them, and reading into our layout."""

    def shapes(self) -> dict[str, Shape]:
        """Every tensor in the file."""

    def place(self, name: str) -> Place:
        """Where the tensor that we call ``name`` lies."""

    def spare(self, name: str) -> bool:
        """Whether a tensor that no name asks for may be there."""

    def read(self, name: str) -> Tensor:
        """The tensor that we call ``name``, float32, contiguous, in memory of its own."""

    def pack(self, name: str, shelf: Shelf) -> Packed:
        """The matrix that we call ``name``, in the file's type, on the shelf."""


def load_weights(path: str | Path, spec: ModelSpec, packed: bool = False) -> dict[str, Weight]:
    """Every weight of the model at ``path`` (a .gguf, or a folder with safetensors).

    As float32 tensors or, the matrices, packed for the native library.

    ModelError names each tensor that is missing, unknown, of another shape or of a type that
    cannot be read; nothing is read before all of them fit.
    """
    found = locate(path)
    file: WeightFile
    file = SafetensorsWeights(found.parent, spec) if is_config(found) else GgufWeights(found, spec)
    wanted = expected_shapes(spec)
    _check(str(found), file, wanted)
    shelf = Shelf()
    return {
        name: file.pack(name, shelf) if packed and len(shape) == 2 else file.read(name)
        for name, shape in wanted.items()
    }


def _check(source: str, file: WeightFile, wanted: Iterable[str]) -> None:
    present = file.shapes()
    places = (file.place(name) for name in wanted)
    names = {place.tensor: place.shape for place in places}
    missing = [name for name in names if name not in present]
    extra = [name for name in present if name not in names and not file.spare(name)]
    wrong = [
        f"{name} is {list(present[name])} and must be {list(shape)}"
        for name, shape in names.items()
        if name in present and present[name] != shape
    ]
    faults = [
        f"{title} {_listed(items)}"
        for title, items in (("missing:", missing), ("unknown:", extra), ("wrong shape:", wrong))
        if items
    ]
    if faults:
        raise ModelError(
            f"{source}: the weights do not fit the model's description; " + "; ".join(faults)
        )


def _listed(items: Iterable[str], most: int = 5) -> str:
    items = list(items)
    rest = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + rest
