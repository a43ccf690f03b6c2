"""The header of a GGUF file (versions 2 and 3), read strictly and without trusting it.

    magic, version | counts | key-value pairs | tensor table | padding | tensor data

Every length is compared with the file's size before anything is allocated, and every tensor's
extent with the end of the file, so that whoever maps the data later cannot read past it.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from kvik.errors import SpecError
from kvik.spec.cursor import Cursor, Strings
from kvik.spec.ggml import TENSOR_TYPES

__all__ = ["Header", "Strings", "TensorInfo", "read_header"]

# No model comes near these; they bound the time a hostile header can take.
MAX_PAIRS = MAX_TENSORS = 1 << 16
MAX_DIMS = 4
MAX_NAME = 1 << 10
MAX_ALIGNMENT = 1 << 20


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: ``shape`` in torch's order (rows first), ``offset`` from the file's start."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """Metadata and tensor table. Arrays of numbers are ``array.array``, of text ``Strings``."""

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_header(path: str | Path) -> Header:
    """Read and check the header of the GGUF file at ``path``; SpecError on any fault."""
    path = Path(path)
    try:
        if not path.is_file():
            raise SpecError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
        with path.open("rb") as file:
            if not file.read(1):
                raise SpecError(f"{path}: the file is empty: fetch it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(Cursor(data, str(path)))
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror or error})") from error


def _read(cursor: Cursor) -> Header:
    if cursor.raw(4, "the magic number") != b"GGUF":
        raise cursor.fault("not a GGUF file (it does not start with 'GGUF')")
    version = cursor.u32("the version")
    if version not in (2, 3):
        swapped = struct.unpack(">I", struct.pack("<I", version))[0]
        detail = "big-endian GGUF" if swapped in (2, 3) else f"GGUF version {version}"
        raise cursor.fault(f"{detail} is not supported; versions 2 and 3, little-endian, are")
    tensor_count = cursor.u64("the tensor count")
    pair_count = cursor.u64("the number of metadata pairs")
    for count, limit, what in (
        (tensor_count, MAX_TENSORS, "tensors"),
        (pair_count, MAX_PAIRS, "metadata pairs"),
    ):
        if count > limit:
            raise cursor.fault(f"the header announces {count} {what}; at most {limit} are read")
    metadata = _read_metadata(cursor, pair_count)
    tensors = _read_tensors(cursor, tensor_count, _alignment(cursor, metadata))
    return Header(version, metadata, tensors)


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        key = cursor.string(f"the key of metadata pair {index}", MAX_NAME)
        if not key or key in metadata:
            fault = f"the metadata key {key!r} appears twice" if key else "a metadata key is empty"
            raise cursor.fault(fault)
        metadata[key] = cursor.value(cursor.u32(f"the type of {key!r}"), key)
    return metadata


def _alignment(cursor: Cursor, metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        raise cursor.fault(f"general.alignment must be a power of two, not {value!r}")
    return value


def _read_tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    entries = [_read_entry(cursor, index, alignment) for index in range(count)]
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, kind, shape, offset, nbytes in entries:
        if name in tensors:
            raise cursor.fault(f"the tensor {name!r} appears twice")
        cursor.need(start + offset + nbytes, f"tensor {name!r}")
        tensors[name] = TensorInfo(name, kind, shape, start + offset, nbytes)
    _refuse_overlap(cursor, sorted(tensors.values(), key=lambda tensor: tensor.offset))
    return tensors


def _read_entry(
    cursor: Cursor, index: int, alignment: int
) -> tuple[str, str, tuple[int, ...], int, int]:
    name = cursor.string(f"the name of tensor {index}", MAX_NAME)
    what = f"the description of tensor {name!r}"
    dims = cursor.u32(what)
    if not 1 <= dims <= MAX_DIMS:
        raise cursor.fault(f"tensor {name!r} has {dims} dimensions; 1 to {MAX_DIMS} are read")
    shape = tuple(cursor.u64(what) for _ in range(dims))[::-1]
    code, offset = cursor.u32(what), cursor.u64(what)
    if code not in TENSOR_TYPES:
        raise cursor.fault(f"tensor {name!r} has the unknown type {code}")
    kind = TENSOR_TYPES[code]
    if min(shape) < 1 or prod(shape) >= 1 << 63:
        raise cursor.fault(f"tensor {name!r} has the impossible shape {list(shape)}")
    if shape[-1] % kind.elements:
        raise cursor.fault(
            f"tensor {name!r} has rows of {shape[-1]}, not a multiple of the {kind.elements} "
            f"elements in a block of {kind.name}"
        )
    if offset % alignment:
        raise cursor.fault(f"tensor {name!r} starts at {offset}, not aligned to {alignment} bytes")
    return name, kind.name, shape, offset, prod(shape) // kind.elements * kind.nbytes


def _refuse_overlap(cursor: Cursor, tensors: Sequence[TensorInfo]) -> None:
    for first, second in pairwise(tensors):
        if first.offset + first.nbytes > second.offset:
            raise cursor.fault(f"tensors {first.name!r} and {second.name!r} overlap")
