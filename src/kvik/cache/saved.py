"""A sequence as bytes: its pages as they are, its tables, a checksum over everything."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvik.cache.kvcache import KVCache
from kvik.cache.pool import Ids
from kvik.cache.table import RaggedTable, Sequence, State, Table
from kvik.errors import KvikError
from kvik.recipe.layout import ALIGN
from kvik.recipe.plan import Group, Plan, pages_of

MAGIC = b"kvikseq1"
DIGEST = 32


def fingerprint(plan: Plan) -> str:
    """Identifies what the bytes mean: the recipe and every layer of the model."""
    text = f"{plan.recipe.digest}\0{plan.spec.name}\0{plan.spec.layers!r}"
    return hashlib.sha256(text.encode()).hexdigest()


def dump(cache: KVCache, sequence: Sequence) -> bytes:
    """The sequence as bytes that :func:`load` restores in any pool of the same plan."""
    state = sequence.state
    header: dict[str, Any] = {"plan": fingerprint(cache.resolved), "length": state.length}
    blobs: list[bytes] = []
    for group, main, tail in zip(cache.resolved.groups, state.main, state.tail, strict=True):
        if isinstance(main, RaggedTable):
            blobs.append(main.positions.tobytes())
            if main.mass is not None:
                blobs.append(main.mass.numpy().tobytes())
        blobs.append(_page_bytes(cache, main.pages, group.main.nbytes))
        if tail is not None and group.tail is not None:
            blobs.append(_page_bytes(cache, tail.pages, group.tail.nbytes))
    blobs += [s.numpy().tobytes() for s in state.layer_states if s is not None]
    text = json.dumps(header).encode()
    body = len(text).to_bytes(8, "little") + text + b"".join(blobs)
    return MAGIC + hashlib.sha256(body).digest() + body


def load(cache: KVCache, data: bytes) -> Sequence:
    """Restores a sequence; KvikError, and an unchanged cache, for anything damaged or foreign."""
    body = memoryview(data)[len(MAGIC) + DIGEST :]
    if data[: len(MAGIC)] != MAGIC:
        raise KvikError("this is no saved kvik sequence")
    if hashlib.sha256(body).digest() != data[len(MAGIC) : len(MAGIC) + DIGEST]:
        raise KvikError("the saved sequence is damaged: its checksum does not match")
    size = int.from_bytes(body[:8], "little")
    header = json.loads(bytes(body[8 : 8 + size]))
    if header["plan"] != fingerprint(cache.resolved):
        raise KvikError("the saved sequence belongs to another model or recipe")
    return Sequence(_Reader(cache, body[8 + size :], int(header["length"])).state())


class _Reader:
    def __init__(self, cache: KVCache, blob: memoryview, length: int) -> None:
        self.cache, self.blob, self.length, self.at = cache, blob, length, 0
        self.taken: list[Ids] = []

    def state(self) -> State:
        try:
            return self._state()
        except Exception:
            for ids in self.taken:
                self.cache.pool.release(ids)
            raise

    def _state(self) -> State:
        plan = self.cache.resolved
        main: list[Table | RaggedTable] = []
        tail: list[Table | None] = []
        for group in plan.groups:
            main.append(self._ragged(group) if group.evicting else self._table(group, "main"))
            tail.append(self._table(group, "tail") if group.tail else None)
        states = [
            self._floats(layer.state_shape) if layer.kind == "state" else None
            for layer in plan.spec.layers
        ]
        if self.at != len(self.blob):
            raise KvikError("the saved sequence has bytes that belong to nothing")
        return State(self.length, tuple(main), tuple(tail), tuple(states))

    def _take(self, nbytes: int) -> bytes:
        if self.at + nbytes > len(self.blob):
            raise KvikError("the saved sequence is shorter than its length says")
        self.at += nbytes
        return bytes(self.blob[self.at - nbytes : self.at])

    def _floats(self, shape: tuple[int, ...]) -> Tensor:
        count = int(np.prod(shape, dtype=np.int64))
        return torch.frombuffer(bytearray(self._take(4 * count)), dtype=torch.float32).view(shape)

    def _pages(self, nbytes: int, count: int) -> Ids:
        data = self._take(nbytes * count)
        ids = self.cache.pool.alloc(nbytes, count)
        self.taken.append(ids)
        for i, page in enumerate(ids.tolist()):
            chunk = torch.frombuffer(
                bytearray(data[i * nbytes : (i + 1) * nbytes]), dtype=torch.uint8
            )
            self.cache.pool.buffer[page * ALIGN : page * ALIGN + nbytes] = chunk
        return ids

    def _table(self, group: Group, which: str) -> Table:
        page = group.main if which == "main" else group.tail
        assert page is not None
        ranges = group.main_ranges if which == "main" else group.tail_ranges
        numbers = np.asarray(pages_of(ranges(self.length), group.tokens), dtype=np.int32)
        return Table(numbers, self._pages(page.nbytes, numbers.size))

    def _ragged(self, group: Group) -> RaggedTable:
        assert group.evicting is not None
        assert group.head is not None
        count = group.evicting.stored(self.length, group.layers[0].index, group.head)
        positions = np.frombuffer(self._take(4 * count), dtype=np.int32)
        ascending = bool((np.diff(positions) > 0).all())
        if count and (positions[0] < 0 or positions[-1] >= self.length or not ascending):
            raise KvikError("the saved sequence names impossible positions")
        mass = self._floats((count,)) if "mass" in group.evicting.signals else None
        pages = self._pages(group.main.nbytes, -(-count // group.tokens))
        return RaggedTable(positions, pages, mass)


def _page_bytes(cache: KVCache, ids: Ids, nbytes: int) -> bytes:
    buffer = cache.pool.buffer
    parts = [buffer[i * ALIGN : i * ALIGN + nbytes].numpy().tobytes() for i in ids.tolist()]
    return b"".join(parts)
