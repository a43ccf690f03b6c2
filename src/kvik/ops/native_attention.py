"""Attention by the native library: over pages, and over explicit entries.

The structures mirror csrc/include/kvik.h; what crosses is checked here, the library trusts it.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvik.errors import KvikError
from kvik.native import library
from kvik.ops.reference import Keys, Scoring
from kvik.recipe.codec import Codec
from kvik.recipe.layout import ALIGN, PageFormat, PlaneSlot
from kvik.recipe.plan import LayerPlan
from kvik.spec.model import LayerSpec
from kvik.stages.floats import Float
from kvik.stages.ints import Int

MOST_DIM = 512  # channels of a head, as the kernels' scratch memory has them

_FLOATS = {"float32": 0, "float16": 1, "bfloat16": 2}
_INT8, _UINT8, _INT4, _UINT4 = 3, 4, 5, 6


class _Stream(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ("format", "dim", "group", "reserved")),
        *((name, c_int64) for name in ("code", "scale", "low")),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        ("k", _Stream),
        ("v", _Stream),
        *((name, c_int32) for name in ("heads", "kv_heads", "page_tokens")),
        *((name, c_int32) for name in ("rope_dim", "rope_offset", "rope_interleaved")),
        ("scale", c_float),
        ("softcap", c_float),
        *((name, c_int64) for name in ("window", "sinks", "scratch_origin")),
    )


class _Batch(ctypes.Structure):
    _fields_ = (
        ("sequences", c_int64),
        *((name, c_void_p) for name in ("row", "start", "table", "numbers", "refs", "pool")),
    )


# What the library is told of a place, in its structures.
SHARED: tuple[tuple[str, Any], ...] = (
    *((name, c_void_p) for name in ("cos", "sin", "second_cos", "second_sin", "scratch")),
    ("scratch_stride", c_int64),
)


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("q", "k", "v")),
        *((name, c_int64) for name in ("q_stride", "k_stride", "v_stride")),
        *SHARED,
        ("out", c_void_p),
        ("lse", c_void_p),
    )


class _Dense(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("q", "second", "k", "v", "position", "first", "until")),
        *((name, c_int64) for name in ("heads", "group", "queries", "entries")),
        *((name, c_int64) for name in ("dim", "v_dim", "sinks")),
        ("scale", c_float),
        ("softcap", c_float),
        *((name, c_void_p) for name in ("out", "lse", "mass")),
    )


def _stream(codec: Codec, slots: tuple[PlaneSlot, ...], dim: int) -> _Stream | None:
    """The stream as the kernels read it; None when they cannot."""
    if not codec.immediate or codec.pre_rope or dim % 16 or dim > MOST_DIM:
        return None
    at = {slot.name: slot.offset for slot in slots}
    if type(codec) is Float:
        return _Stream(_FLOATS[codec.dtype], dim, dim, 0, at["x"], 0, 0)
    if type(codec) is Int:
        group = codec.group_of(dim)
        if group % 8 or (codec.bits == 4 and dim % 32):
            return None
        formats = (_INT8, _UINT8) if codec.bits == 8 else (_INT4, _UINT4)
        kind = formats[0 if codec.symmetric else 1]
        return _Stream(kind, dim, group, 0, at["code"], at["scale"], at.get("low", 0))
    return None


@dataclass(frozen=True)
class NativeLayer:
    """A layer that the native kernels can attend: ``plan`` stores, ``spec`` asks.

    The two differ for a layer that reads another one's cache. ``scratch`` is what one page of
    this layer alone takes, in bytes.
    """

    spec: LayerSpec
    plan: LayerPlan
    scratch: int
    struct: _Layer

    @classmethod
    def of(cls, spec: LayerSpec, plan: LayerPlan, pages: PageFormat) -> NativeLayer | None:
        """The layer, or None when its codecs or shapes are not for these kernels."""
        if plan.v is None:
            return None
        slots = pages.of(plan.index, "k"), pages.of(plan.index, "v")
        k = _stream(plan.k, slots[0], plan.spec.k_dim)
        v = _stream(plan.v, slots[1], plan.spec.v_dim)
        if k is None or v is None:
            return None
        both = (*slots[0], *slots[1])
        origin = min(slot.offset for slot in both)
        end = max(slot.offset + -(-slot.nbytes // ALIGN) * ALIGN for slot in both)
        rope = spec.rope
        struct = _Layer(
            k,
            v,
            spec.heads,
            plan.spec.kv_heads,
            pages.tokens,
            0 if rope is None else rope.dim,
            0 if rope is None else rope.offset,
            int(rope is not None and rope.layout == "interleaved"),
            spec.scale,
            spec.softcap or 0.0,
            plan.kept.window or 0,
            plan.kept.sinks,
            origin,
        )
        return cls(spec, plan, end - origin, struct)

    @property
    def span(self) -> int | None:
        """Positions that queries of sinks are turned within, where they are."""
        return self.plan.kept.span if self.plan.kept.in_cache else None

    @cached_property
    def address(self) -> int:
        """Of what the library reads."""
        return ctypes.addressof(self.struct)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Channels of a token's queries, keys and values; queries alone if it stores nothing."""
        stored = self.plan.spec
        queries = self.spec.heads * stored.k_dim
        if self.spec.source is not None:
            return (queries,)
        return queries, stored.kv_heads * stored.k_dim, stored.kv_heads * stored.v_dim

    @cached_property
    def mixed(self) -> int:
        """Channels of a token's output."""
        return self.spec.heads * self.plan.spec.v_dim


class NativeTables:
    """The pages of the sequences of a step in one group of layers, as the kernels read them.

    ``numbers[b]`` and ``refs[b]`` int32 are those of sequence b, ascending by number. A reference
    is the page's id in the pool, or -1 - i for the i-th of ``scratch_pages`` pages beside it.
    """

    def __init__(
        self,
        pool: Tensor,
        numbers: Sequence[NDArray[np.int32]],
        refs: Sequence[NDArray[np.int32]],
        scratch_pages: int,
        page_tokens: int,
    ) -> None:
        self.scratch_pages, self.page_tokens = scratch_pages, page_tokens
        sizes = [each.size for each in numbers]
        if sizes != [each.size for each in refs]:
            raise KvikError("a batch's tables do not belong together")
        joined = _joined(numbers), _joined(refs)
        for each in joined:
            if each.ndim != 1 or each.dtype != np.int32 or not each.flags.c_contiguous:
                raise KvikError("a batch's tables are contiguous arrays of int32")
        pages = joined[1]
        if pages.size and (
            int(pages.max()) >= pool.numel() // ALIGN or int(pages.min()) < -scratch_pages
        ):
            raise KvikError("a batch's tables name pages that the pool does not have")
        self.newest = [int(each[-1]) if each.size else None for each in numbers]
        bounds = array("q", accumulate(sizes, initial=0))
        self._keep = (pool, *joined, bounds)
        self.addresses = (
            bounds.buffer_info()[0],
            *map(_address, joined),
            pool.data_ptr(),
        )

    def hold(self, starts: Sequence[int], counts: Sequence[int]) -> bool:
        """Whether ``counts[b]`` tokens from position ``starts[b]`` on end in b's newest page."""
        tokens = self.page_tokens
        return self.newest == [
            (start + count - 1) // tokens for start, count in zip(starts, counts, strict=True)
        ]


class NativeBatch:
    """The sequences of a step in one group of layers: ``counts[b]`` tokens from ``starts[b]`` on.

    ``tables`` have the pages of all that they see, their own tokens included.
    """

    def __init__(self, tables: NativeTables, starts: Sequence[int], counts: Sequence[int]) -> None:
        if not tables.hold(starts, counts):
            raise KvikError("a batch's tables have no page for its newest tokens")
        row, start = array("q", accumulate(counts, initial=0)), array("q", starts)
        self.rows, self.scratch_pages = row[-1], tables.scratch_pages
        self._keep = (tables, row, start)
        at = row.buffer_info()[0], start.buffer_info()[0], *tables.addresses
        self.struct = _Batch(len(starts), *at)
        self.address = ctypes.addressof(self.struct)


@dataclass(frozen=True)
class Turn:
    """cos and sin of the angles that rotate q and k, float32 [2, N, rope.dim / 2].

    ``second`` rotate the query that scores sinks, where there is one.
    """

    first: NDArray[np.float32]
    second: NDArray[np.float32] | None = None

    def check(self, layer: NativeLayer, rows: int) -> None:
        """KvikError unless there is one angle for every pair of every row."""
        shape = (2, rows, layer.struct.rope_dim // 2)
        for x in (self.first, self.second):
            if x is None or (x.shape == shape and x.dtype == np.float32 and x.flags.c_contiguous):
                continue
            raise KvikError(f"angles are float32 {list(shape)}, not {x.dtype} {list(x.shape)}")

    @cached_property
    def addresses(self) -> tuple[int | None, ...]:
        """Of cos, sin, and the second pair where there is one."""
        return (
            *_halves(self.first),
            *((None, None) if self.second is None else _halves(self.second)),
        )


def _halves(x: NDArray[np.float32]) -> tuple[int, int]:
    at = _address(x)
    return at, at + x.nbytes // 2


def _address(x: NDArray[Any]) -> int:
    at: int = x.__array_interface__["data"][0]
    return at


_NONE = np.empty(0, dtype=np.int32)


def _joined(arrays: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    return arrays[0] if len(arrays) == 1 else np.concatenate([_NONE, *arrays])


@dataclass(frozen=True)
class Place:
    """One layer in one step: what it asks, and where its tokens are.

    ``scratch`` uint8 holds the batch's scratch pages of this layer.
    """

    layer: NativeLayer
    batch: NativeBatch
    turn: Turn
    scratch: Tensor | None

    def __post_init__(self) -> None:
        self.turn.check(self.layer, self.batch.rows)
        if self.batch.scratch_pages:
            need, have = self.batch.scratch_pages * self.layer.scratch, self.scratch
            if have is None or have.numel() < need or have.data_ptr() % ALIGN:
                raise KvikError(
                    f"{need} bytes of scratch pages are needed, at a multiple of {ALIGN}"
                )

    @property
    def shared(self) -> tuple[int | None, ...]:
        """Angles and scratch pages, as the library's structures name them one after another."""
        if self.scratch is None:
            return (*self.turn.addresses, None, 0)
        return (*self.turn.addresses, self.scratch.data_ptr(), self.layer.scratch)


def _rows(x: Tensor, shape: tuple[int, int, int], what: str) -> Tensor:
    """``x`` with whole rows in memory; KvikError for another shape or type."""
    if tuple(x.shape) != shape or x.dtype != torch.float32 or x.device.type != "cpu":
        raise KvikError(f"{what} is float32 {list(shape)}, not {x.dtype} {list(x.shape)}")
    if x.stride(2) == 1 and x.stride(1) == shape[2]:
        return x
    return x.contiguous()


def attend_pages(
    place: Place, q: Tensor, k: Tensor | None, v: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Writes k [N, H, D] and v [N, H, Dv] to their pages and attends with q [N, heads, D].

    All come before rotation; k and v None when they are written already. Returns the output
    [N, heads, Dv] and the log-sum-exp [N, heads]. A row's result is the same to the bit whatever
    comes with it.
    """
    lib = library()
    assert lib is not None
    layer, batch = place.layer, place.batch
    spec, stored, n = layer.spec, layer.plan.spec, batch.rows
    q = _rows(q, (n, spec.heads, stored.k_dim), "q")
    if (k is None) != (v is None):
        raise KvikError("k and v are written together")
    written: tuple[int | None, ...] = (None, None, 0, 0)
    if k is not None and v is not None:
        k = _rows(k, (n, stored.kv_heads, stored.k_dim), "k")
        v = _rows(v, (n, stored.kv_heads, stored.v_dim), "v")
        written = (k.data_ptr(), v.data_ptr(), k.stride(0), v.stride(0))
    out = q.new_empty((n, spec.heads, stored.v_dim))
    lse = q.new_empty((n, spec.heads))
    at_k, at_v, k_stride, v_stride = written
    step = _Step(
        *(q.data_ptr(), at_k, at_v, q.stride(0), k_stride, v_stride),
        *place.shared,
        *(out.data_ptr(), lse.data_ptr()),
    )
    lib.kvik_attend(ctypes.byref(batch.struct), ctypes.byref(layer.struct), ctypes.byref(step))
    return out, lse


def can_attend(q: Tensor, keys: Keys) -> bool:
    """Whether the native library is there and takes these explicit entries."""
    return (
        q.dtype == keys.k.dtype == keys.v.dtype == torch.float32
        and q.shape[-1] % 16 == 0
        and keys.v.shape[-1] % 16 == 0
        and max(q.shape[-1], keys.v.shape[-1]) <= MOST_DIM
        and library() is not None
    )


def attend_entries(
    q: Tensor, positions: Tensor, keys: Keys, scoring: Scoring, q_sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """:func:`kvik.ops.reference.attend` by the native library."""
    h, g, n, _ = q.shape
    out = q.new_empty((h, g, n, keys.v.shape[-1]))
    lse = q.new_empty((h, g, n))
    _dense(q, positions, keys, scoring, q_sinks, out, lse, None)
    return out, lse


def mass_of_entries(
    q: Tensor,
    positions: Tensor,
    keys: Keys,
    scoring: Scoring,
    lse: Tensor,
    q_sinks: Tensor | None = None,
) -> Tensor:
    """:func:`kvik.ops.reference.mass` by the native library."""
    received = q.new_zeros(keys.k.shape[:2], dtype=torch.float64)
    # A query that sees nothing has a log-sum-exp of -inf; its weights are 0 in any case.
    finite = lse.masked_fill(lse.isinf(), 0.0).contiguous()
    _dense(q, positions, keys, scoring, q_sinks, None, finite, received)
    return received


def _dense(
    q: Tensor,
    positions: Tensor,
    keys: Keys,
    scoring: Scoring,
    q_sinks: Tensor | None,
    out: Tensor | None,
    lse: Tensor,
    mass: Tensor | None,
) -> None:
    lib = library()
    assert lib is not None
    h, g, n, d = q.shape
    e, dv = keys.k.shape[1], keys.v.shape[-1]
    shapes = (tuple(keys.k.shape) == (h, e, d), tuple(keys.v.shape) == (h, e, dv))
    counts = (positions, n), (keys.position, e), (keys.first, e), (keys.until, e)
    if not all(shapes) or any(x.shape != (m,) or x.dtype != torch.int64 for x, m in counts):
        raise KvikError(f"entries of other shapes than the queries {list(q.shape)} ask for")
    if not 0 <= keys.sinks <= e or (q_sinks is not None and q_sinks.shape != q.shape):
        raise KvikError("the sinks' queries, or their number, do not fit")
    used = [x.contiguous() for x in (q, keys.k, keys.v, positions, keys.first, keys.until)]
    second = None if q_sinks is None else q_sinks.contiguous()
    at = [x.data_ptr() for x in used]
    lib.kvik_attend_dense(
        ctypes.byref(
            _Dense(
                at[0],
                None if second is None else second.data_ptr(),
                *at[1:],
                *(h, g, n, e, d, dv, 0 if second is None else keys.sinks),
                scoring.scale,
                scoring.softcap or 0.0,
                None if out is None else out.data_ptr(),
                lse.data_ptr(),
                None if mass is None else mass.data_ptr(),
            )
        )
    )
