"""A sequence as bytes: its pages as they are, its tables, a checksum over everything."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvik.cache.kvcache import KVCache
from kvik.cache.pool import Ids
from kvik.cache.table import RaggedTable, Sequence, State, Table
from kvik.errors import KvikError
from kvik.recipe.layout import ALIGN, PageFormat, PlaneSlot
from kvik.recipe.plan import Group, Plan, page_count, pages_of
from kvik.recipe.retention import FOREVER, Ranges

MAGIC = b"kvikseq1"
DIGEST = 32
MAX_HEADER = 4096


def fingerprint(plan: Plan) -> str:
    """Identifies what the bytes mean: the recipe and every layer of the model."""
    text = f"{plan.recipe.digest}\0{plan.spec.name}\0{plan.spec.layers!r}"
    return hashlib.sha256(text.encode()).hexdigest()


def dump(cache: KVCache, sequence: Sequence) -> bytes:
    """The sequence as bytes that :func:`load` restores in any pool of the same plan.

    Equal sequences give equal bytes: what lies in unused places of their pages (remains of other
    sequences) is left out.
    """
    state, plan = sequence.state, cache.resolved
    header = {"plan": fingerprint(plan), "length": state.length}
    blobs: list[bytes] = []
    for group, main, tail in zip(plan.groups, state.main, state.tail, strict=True):
        if isinstance(main, RaggedTable):
            blobs.append(main.positions.tobytes())
            if main.mass is not None:
                blobs.append(main.mass.numpy().tobytes())
            table = Table(np.arange(main.pages.size, dtype=np.int32), main.pages)
            written = [main.positions.size] * len(group.main.slots)
        else:
            table = main
            written = [_closed(plan, slot, state.length) for slot in group.main.slots]
        blobs.append(_pages(cache, table, group.main, written))
        if tail is not None and group.tail is not None:
            written = [state.length] * len(group.tail.slots)
            blobs.append(_pages(cache, tail, group.tail, written))
    blobs += [s.numpy().tobytes() for s in state.layer_states if s is not None]
    text = json.dumps(header).encode()
    body = len(text).to_bytes(8, "little") + text + b"".join(blobs)
    return MAGIC + hashlib.sha256(body).digest() + body


def _closed(plan: Plan, slot: PlaneSlot, seen: int) -> int:
    layer = plan.layers[slot.layer]
    assert layer is not None
    return layer.codec(slot.stream).closed(seen)


def _pages(cache: KVCache, table: Table, page: PageFormat, written: list[int]) -> bytes:
    """The pages of a table; of each plane only what its first ``written`` tokens have put there."""
    count, first = table.pages.size, table.numbers.astype(np.int64) * page.tokens
    source = cache.pool.buffer.view(-1, ALIGN).numpy()[_rows(table.pages, page.nbytes)]
    source = source.reshape(count, page.nbytes)
    kept = np.zeros_like(source)
    for slot, tokens in zip(page.slots, written, strict=True):
        place = slice(slot.offset, slot.offset + slot.nbytes)
        units = source[:, place].reshape(count, slot.heads, slot.units, slot.plane.unit_bytes)
        used = np.arange(slot.units) < ((tokens - first) // slot.plane.tokens)[:, None]
        kept[:, place] = np.where(used[:, None, :, None], units, 0).reshape(count, slot.nbytes)
    return bytes(kept.data)


def _rows(pages: Ids, nbytes: int) -> NDArray[np.int64]:
    """The 64-byte rows [N * nbytes / 64] of pages [N] in the pool's buffer."""
    return (pages.astype(np.int64)[:, None] + np.arange(nbytes // ALIGN)).reshape(-1)


def load(cache: KVCache, data: bytes) -> Sequence:
    """Restores a sequence; KvikError, and an unchanged cache, for anything damaged or foreign."""
    body = memoryview(data)[len(MAGIC) + DIGEST :]
    if data[: len(MAGIC)] != MAGIC:
        raise KvikError("this is no saved kvik sequence")
    if hashlib.sha256(body).digest() != data[len(MAGIC) : len(MAGIC) + DIGEST]:
        raise KvikError("the saved sequence is damaged: its checksum does not match")
    size = int.from_bytes(body[:8], "little")
    try:
        if size > MAX_HEADER:
            raise ValueError("too long")
        header = json.loads(bytes(body[8 : 8 + size]))
        plan, length = header["plan"], header["length"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise KvikError("the saved sequence has a header that makes no sense") from None
    if plan != fingerprint(cache.resolved):
        raise KvikError("the saved sequence belongs to another model or recipe")
    if type(length) is not int or not 0 <= length < FOREVER:
        raise KvikError("the saved sequence has an impossible length")
    return Sequence(_Reader(cache, body[8 + size :], length).state())


class _Reader:
    def __init__(self, cache: KVCache, blob: memoryview, length: int) -> None:
        self.cache, self.blob, self.length, self.at = cache, blob, length, 0
        self.taken: list[Ids] = []

    def state(self) -> State:
        try:
            return self._state()
        except BaseException:
            for ids in self.taken:
                self.cache.pool.release(ids)
            raise

    def _state(self) -> State:
        plan, seen = self.cache.resolved, self.length
        main: list[Table | RaggedTable] = []
        tail: list[Table | None] = []
        for group in plan.groups:
            if group.evicting:
                main.append(self._ragged(group))
            else:
                main.append(self._table(group.main, group.main_ranges(seen)))
            tail.append(self._table(group.tail, group.tail_ranges(seen)) if group.tail else None)
        states = [
            self._floats(layer.state_shape) if layer.kind == "state" else None
            for layer in plan.spec.layers
        ]
        if self.at != len(self.blob):
            raise KvikError("the saved sequence has bytes that belong to nothing")
        return State(seen, tuple(main), tuple(tail), tuple(states))

    def _expect(self, nbytes: int) -> None:
        if nbytes > len(self.blob) - self.at:
            raise KvikError("the saved sequence is shorter than its length says")

    def _take(self, nbytes: int) -> NDArray[np.uint8]:
        self._expect(nbytes)
        self.at += nbytes
        return np.frombuffer(self.blob[self.at - nbytes : self.at], dtype=np.uint8).copy()

    def _floats(self, shape: tuple[int, ...]) -> Tensor:
        count = int(np.prod(shape, dtype=np.int64))
        return torch.from_numpy(self._take(4 * count).view(np.float32)).view(shape)

    def _pages(self, nbytes: int, count: int) -> Ids:
        data = torch.from_numpy(self._take(nbytes * count)).view(count * nbytes // ALIGN, ALIGN)
        ids = self.cache.pool.alloc(nbytes, count)
        self.taken.append(ids)
        self.cache.pool.buffer.view(-1, ALIGN)[torch.from_numpy(_rows(ids, nbytes))] = data
        return ids

    def _table(self, page: PageFormat, ranges: Ranges) -> Table:
        # Before anything is made for a length that the file may only claim.
        self._expect(page_count(ranges, page.tokens) * page.nbytes)
        numbers = np.asarray(pages_of(ranges, page.tokens), dtype=np.int32)
        return Table(numbers, self._pages(page.nbytes, numbers.size))

    def _ragged(self, group: Group) -> RaggedTable:
        assert group.evicting is not None
        assert group.head is not None
        count = group.evicting.stored(self.length, group.layers[0].index, group.head)
        positions = self._take(4 * count).view(np.int32)
        ascending = bool((np.diff(positions) > 0).all())
        if count and (positions[0] < 0 or positions[-1] >= self.length or not ascending):
            raise KvikError("the saved sequence names impossible positions")
        mass = self._floats((count,)) if "mass" in group.evicting.signals else None
        pages = self._pages(group.main.nbytes, -(-count // group.tokens))
        return RaggedTable(positions, pages, mass)
