"""Linear maps over packed weights, by the native library: checked calls, nothing else.

Activations are float32 [n, features]; a row's result does not depend on the rows beside it, on
threads or on the instruction set. csrc/include/kvik_linear.h says what is computed.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvik.errors import KvikError
from kvik.native import library
from kvik.ops.shelf import Shelf
from kvik.spec.ggml import TENSOR_TYPES

# GGUF's tensor types that can be packed, by name, with their numbers.
PACKABLE = {
    kind.name: number
    for number, kind in TENSOR_TYPES.items()
    if kind.name
    in (
        *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
        *("Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"),
    )
}
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}

# The factors of a root mean square norm, float32 [size], and its epsilon.
Norm = tuple[Tensor, float]


class _Matrix(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("bias", c_void_p),
        ("rows", c_int64),
        ("cols", c_int64),
        ("type", c_int32),
        ("unit", c_float),
    )


class _Norm(Structure):
    _fields_ = (("weight", c_void_p), ("eps", c_float))


class _Project(Structure):
    _fields_ = (
        ("norm", _Norm),
        ("matrices", _Matrix * 3),
        ("heads", _Norm * 3),
        ("head_dim", c_int64),
        ("count", c_int32),
    )


class _Finish(Structure):
    _fields_ = (
        *((name, _Matrix) for name in ("o", "gate", "up", "down")),
        *((name, _Norm) for name in ("post_mixer", "ffn", "post_ffn")),
        ("activation", c_int32),
    )


@cache
def packed_library() -> ctypes.CDLL:
    """The native library, told what its functions for packed weights take."""
    lib = library()
    if lib is None:
        raise KvikError("packed weights need the native library: load the model with dense=True")
    pointer, many = c_void_p, c_int64
    for name, result, arguments in (
        ("kvik_packed_bytes", many, (c_int32, many, many)),
        ("kvik_pack", c_int32, (c_int32, many, many, pointer, pointer, POINTER(c_float))),
        ("kvik_rows", None, (pointer, pointer, many, c_float, pointer)),
        ("kvik_project", None, (pointer, pointer, many, pointer)),
        ("kvik_finish", None, (pointer, pointer, pointer, many, pointer)),
        ("kvik_layers", None, (pointer, pointer, many, pointer, many, pointer)),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


@dataclass(frozen=True, eq=False)
class Packed:
    """A weight matrix as the kernels read it: codes and scales in panels of eight rows."""

    data: Tensor
    type: str
    shape: tuple[int, int]
    unit: float

    @property
    def dtype(self) -> torch.dtype:
        """What goes in and comes out."""
        return torch.float32

    def rows(self, ids: Sequence[int], scale: float = 1.0) -> Tensor:
        """``scale`` times the rows of those numbers, float32 [len(ids), cols]."""
        out = torch.empty(len(ids), self.shape[1])
        if ids:
            low, high = min(ids), max(ids)
            if low < 0 or high >= self.shape[0]:
                raise KvikError(f"rows {low} to {high} of a matrix of {self.shape[0]} rows")
            numbers = array("q", ids)
            at, count = numbers.buffer_info()
            packed_library().kvik_rows(self._argument, at, count, scale, out.data_ptr())
        return out

    @cached_property
    def _argument(self) -> Any:
        return ctypes.byref(_matrix(self, None, []))


def pack(raw: np.ndarray, kind: str, shape: tuple[int, int], shelf: Shelf | None = None) -> Packed:
    """Pack the bytes of a GGUF tensor of that type, into memory of its own or onto the shelf.

    KvikError when it cannot be packed, is not of that size, or holds NaN or infinity.
    """
    lib, (rows, cols) = packed_library(), shape
    if kind not in PACKABLE:
        raise KvikError(f"tensors of type {kind} cannot be packed; {', '.join(PACKABLE)} can")
    number = PACKABLE[kind]
    block = TENSOR_TYPES[number]
    if rows < 1 or cols < 1 or cols % block.elements:
        raise KvikError(f"a {kind} matrix of {rows} rows of {cols} cannot be packed")
    raw = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
    if raw.nbytes != rows * cols // block.elements * block.nbytes:
        raise KvikError(f"{raw.nbytes} bytes are no {kind} matrix of {rows} rows of {cols}")
    nbytes = lib.kvik_packed_bytes(number, rows, cols)
    data = shelf.take(nbytes) if shelf else torch.empty(nbytes, dtype=torch.uint8)
    unit = c_float()
    if lib.kvik_pack(number, rows, cols, raw.ctypes.data, data.data_ptr(), ctypes.byref(unit)):
        raise KvikError(f"the {kind} matrix holds NaN or infinity")
    return Packed(data, kind, (rows, cols), unit.value)


class Projection:
    """One to three maps of one input, side by side, perhaps after a norm.

    ``head_norms`` are applied to every ``head_dim`` outputs of the map they stand for.
    """

    def __init__(
        self,
        weights: Sequence[Packed],
        biases: Sequence[Tensor | None] = (),
        norm: Norm | None = None,
        head_norms: Sequence[Norm | None] = (),
        head_dim: int = 0,
    ) -> None:
        if not 1 <= len(weights) <= 3 or len({weight.shape[1] for weight in weights}) > 1:
            raise KvikError("a projection has one to three matrices of one input")
        self._call = packed_library().kvik_project
        self._kept: list[object] = []
        self.cols, self.widths = weights[0].shape[1], tuple(weight.shape[0] for weight in weights)
        self.width = sum(self.widths)
        args = _Project(norm=_norm(norm, self.cols, self._kept), head_dim=head_dim)
        args.count = len(weights)
        for i, weight in enumerate(weights):
            args.matrices[i] = _matrix(weight, biases[i] if biases else None, self._kept)
            if head_norms and head_norms[i] is not None:
                if head_dim < 1 or weight.shape[0] % head_dim:
                    raise KvikError(f"{weight.shape[0]} outputs are no heads of {head_dim}")
                args.heads[i] = _norm(head_norms[i], head_dim, self._kept)
        self._kept.append(args)
        self.address = ctypes.addressof(args)

    def __call__(self, x: Tensor, *heads: int) -> Tensor:
        """[n, width] from x [n, cols]; as [n, *heads] where that is as many."""
        n = checked(x, self.cols)
        out = torch.empty(n, *heads) if heads else torch.empty(n, self.width)
        if out.numel() != n * self.width:
            raise KvikError(f"{self.width} outputs are not {heads}")
        if n:
            self._call(self.address, x.data_ptr(), n, out.data_ptr())
        return out


class LayerEnd:
    """What follows a layer's mixer: its output map and the gated feed-forward network, both added.

    The norms after either are Gemma's, and may be absent.
    """

    def __init__(
        self,
        o: Packed,
        gate: Packed,
        up: Packed,
        down: Packed,
        *,
        activation: str,
        ffn_norm: Norm,
        post_mixer_norm: Norm | None = None,
        post_ffn_norm: Norm | None = None,
        o_bias: Tensor | None = None,
    ) -> None:
        hidden, self.cols = o.shape
        inner = gate.shape[0]
        if gate.shape != (inner, hidden) or up.shape != gate.shape or down.shape != (hidden, inner):
            raise KvikError(
                f"output {o.shape}, gate {gate.shape}, up {up.shape} and down {down.shape} "
                "do not belong to one layer"
            )
        if activation not in ACTIVATIONS:
            raise KvikError(f"{activation!r} is no activation; {', '.join(ACTIVATIONS)} are")
        self._call = packed_library().kvik_finish
        self._kept: list[object] = []
        self.hidden, kept = hidden, self._kept
        args = _Finish(
            o=_matrix(o, o_bias, kept),
            gate=_matrix(gate, None, kept),
            up=_matrix(up, None, kept),
            down=_matrix(down, None, kept),
            post_mixer=_norm(post_mixer_norm, hidden, kept),
            ffn=_norm(ffn_norm, hidden, kept),
            post_ffn=_norm(post_ffn_norm, hidden, kept),
            activation=ACTIVATIONS[activation],
        )
        self._kept.append(args)
        self.address = ctypes.addressof(args)

    def __call__(self, mixed: Tensor, x: Tensor) -> Tensor:
        """The layer's output [n, hidden] from its mixer's, [n, cols], and its input x."""
        n = checked(x, self.hidden)
        if checked(mixed, self.cols) != n:
            raise KvikError(f"{len(mixed)} rows of a mixer come with {n} of the layer's input")
        out = torch.empty(n, self.hidden)
        if n:
            self._call(self.address, mixed.data_ptr(), x.data_ptr(), n, out.data_ptr())
        return out


def checked(x: Tensor, cols: int) -> int:
    """The rows of an input that the kernels can read."""
    shape = x.shape
    if (
        len(shape) == 2
        and shape[1] == cols
        and x.dtype is torch.float32
        and x.is_cpu
        and x.is_contiguous()
    ):
        return shape[0]
    raise KvikError(f"packed weights take contiguous float32 [n, {cols}], not {_described(x)}")


def _described(x: Tensor) -> str:
    layout = "" if x.is_contiguous() else ", not contiguous"
    return f"{x.dtype} {list(x.shape)} on {x.device}{layout}"


def _matrix(weight: Packed, bias: Tensor | None, kept: list[object]) -> _Matrix:
    kept += (weight.data, bias)
    rows, cols = weight.shape
    return _Matrix(
        weight.data.data_ptr(),
        None if bias is None else _vector(bias, rows),
        rows,
        cols,
        PACKABLE[weight.type],
        weight.unit,
    )


def _norm(norm: Norm | None, size: int, kept: list[object]) -> _Norm:
    if norm is None:
        return _Norm(None, 0.0)
    kept.append(norm[0])
    return _Norm(_vector(norm[0], size), norm[1])


def _vector(x: Tensor, size: int) -> int:
    if x.shape != (size,) or x.dtype is not torch.float32 or not (x.is_cpu and x.is_contiguous()):
        raise KvikError(f"packed weights take a float32 vector of {size}, not {_described(x)}")
    return x.data_ptr()
