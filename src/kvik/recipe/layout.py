"""Where every byte of a page lies: read by planner, allocator and kernels alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvik.recipe.codec import Codec, Plane, Stream

ALIGN = 64


def align(nbytes: int) -> int:
    """Rounded up to a cache line."""
    return -(-nbytes // ALIGN) * ALIGN


@dataclass(frozen=True)
class PlaneSlot:
    """One plane of one layer's stream inside a page: [heads, units, *plane.shape] at ``offset``."""

    layer: int
    stream: Stream
    name: str
    plane: Plane
    heads: int
    units: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes in use; the next plane starts at the next multiple of 64."""
        return self.heads * self.units * self.plane.unit_bytes


@dataclass(frozen=True)
class PageFormat:
    """A page of ``tokens`` tokens: one contiguous, 64-byte-aligned range of ``nbytes``.

    Layers follow one another; within a layer K's planes, then V's; within a plane the KV heads,
    then the tokens (or groups of tokens).
    """

    tokens: int
    slots: tuple[PlaneSlot, ...]
    nbytes: int

    def of(self, layer: int, stream: Stream) -> tuple[PlaneSlot, ...]:
        """The planes of one stream of one layer."""
        return self._by_stream[layer, stream]

    @cached_property
    def _by_stream(self) -> dict[tuple[int, Stream], tuple[PlaneSlot, ...]]:
        found: dict[tuple[int, Stream], list[PlaneSlot]] = {}
        for slot in self.slots:
            found.setdefault((slot.layer, slot.stream), []).append(slot)
        return {key: tuple(slots) for key, slots in found.items()}


@dataclass(frozen=True)
class StreamLayout:
    """A stream to lay out: ``heads`` KV heads of ``dim`` channels through ``codec``."""

    layer: int
    stream: Stream
    heads: int
    dim: int
    codec: Codec


def page_format(tokens: int, streams: list[StreamLayout]) -> PageFormat:
    """Lays the streams out one after another in pages of ``tokens`` tokens."""
    slots, offset = [], 0
    for s in streams:
        for name, plane in s.codec.planes(s.dim).items():
            units = tokens // plane.tokens
            slots.append(PlaneSlot(s.layer, s.stream, name, plane, s.heads, units, offset))
            offset += align(slots[-1].nbytes)
    return PageFormat(tokens, tuple(slots), offset)
