"""Reading a sequence from a file object that nobody vouches for."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvik.cache.container import AGAIN, SEAL, Reader
from kvik.cache.kvcache import KVCache
from kvik.cache.pool import Ids
from kvik.cache.saved_text import About, Saved, check_text, layout_digest
from kvik.cache.saved_write import rows_of, slices
from kvik.cache.table import RaggedTable, Sequence, State, Table
from kvik.errors import KvikError
from kvik.recipe.layout import ALIGN, PageFormat
from kvik.recipe.plan import Group, Plan, page_count, pages_of
from kvik.recipe.retention import FOREVER

TEXTS = ("domain", "layout", "model", "recipe", "recipe_digest")
COUNTS = ("ids", "length", "marks")


MakeRoom = Callable[[Seq[int]], bool]


def no_room(demand: Seq[int]) -> bool:
    """Takes what room the pool has."""
    return True


@dataclass(frozen=True)
class Checked:
    """A saved sequence that is whole and belongs to ``cache``; its pages are still in the file."""

    reader: Reader
    cache: KVCache
    length: int
    ids: NDArray[np.int64]
    marks: NDArray[np.int64]
    domain: str
    chosen: tuple[RaggedTable | None, ...]
    states: tuple[Tensor | None, ...]


def check(file: BinaryIO, cache: KVCache, identity: bytes, domain: str | None = None) -> Checked:
    """Believes what ``write`` wrote; KvikError for anything else.

    Lengths are compared with the size of the file, then all indices and the checksums of all that
    it holds are checked. ``domain`` None accepts any.
    """
    reader, plan = Reader(file), cache.resolved
    header = _checked(reader.header)
    _check_belongs(header, plan, identity, domain)
    length = header["length"]
    _check_sizes(header, reader, plan)
    ids, marks = reader.array("<i8", header["ids"]), reader.array("<i8", header["marks"])
    chosen = tuple(_chosen(reader, group, length) for group in plan.groups)
    states = tuple(
        _floats(reader, layer.state_shape) if layer.kind == "state" else None
        for layer in plan.spec.layers
    )
    reader.check_seal()
    check_text(plan, length, ids, marks)
    for table in chosen:
        _check_chosen(table, length)
    reader.look_ahead(reader.left - SEAL)
    return Checked(reader, cache, length, ids, marks, header["domain"], chosen, states)


def take(found: Checked, make_room: MakeRoom = no_room) -> Saved:
    """Copies the pages into the pool, once.

    KvikError when the file has changed meanwhile, CapacityError without room; the sequences of
    the cache are unchanged then.
    """
    reader, cache, length, chosen = found.reader, found.cache, found.length, found.chosen
    groups = cache.resolved.groups
    make_room(_demand(cache, length, chosen))
    taken: list[Ids] = []
    try:
        main: list[Table | RaggedTable] = []
        tail: list[Table | None] = []
        for group, table in zip(groups, chosen, strict=True):
            main.append(_main(cache, group, length, table, taken))
            tail.append(_tail(cache, group, length, taken))
        for group, m, t in zip(groups, main, tail, strict=True):
            _fill(reader, cache, group.main, m.pages)
            if t is not None and group.tail is not None:
                _fill(reader, cache, group.tail, t.pages)
        reader.check_seal()
    except BaseException:
        for pages in taken:
            cache.pool.release(pages)
        raise
    sequence = Sequence(State(length, tuple(main), tuple(tail), found.states))
    return Saved(sequence, tuple(found.ids.tolist()), tuple(found.marks.tolist()), found.domain)


def _demand(cache: KVCache, length: int, chosen: Seq[RaggedTable | None]) -> list[int]:
    """Pages of each of the pool's sizes that a sequence of ``length`` tokens has."""
    sizes = cache.pool.page_bytes
    need = [0] * len(sizes)
    for group, table in zip(cache.resolved.groups, chosen, strict=True):
        pages = (
            page_count(group.main_ranges(length), group.tokens)
            if table is None
            else -(-table.positions.size // group.tokens)
        )
        need[sizes.index(group.main.nbytes)] += pages
        if group.tail is not None:
            tail = page_count(group.tail_ranges(length), group.tokens)
            need[sizes.index(group.tail.nbytes)] += tail
    return need


def read_about(file: BinaryIO) -> About:
    """What the header says; nothing else is read."""
    header = _checked(Reader(file).header)
    return About(header["recipe"], header["domain"], header["ids"])


def _checked(header: dict[str, Any]) -> dict[str, Any]:
    """The header, its keys and types as they should be."""
    good = sorted(header) == sorted((*TEXTS, *COUNTS))
    good = good and all(type(header[key]) is str for key in TEXTS)
    good = good and all(type(header[key]) is int for key in COUNTS)
    if not good or not all(0 <= header[key] < FOREVER for key in COUNTS):
        raise KvikError(f"the saved sequence has a header that makes no sense; {AGAIN}")
    return header


def _check_belongs(header: dict[str, Any], plan: Plan, identity: bytes, domain: str | None) -> None:
    if header["recipe_digest"] != plan.recipe.digest:
        raise KvikError(
            f"the saved sequence belongs to another recipe, {header['recipe'][:200]!r}, not to "
            f"'{plan.recipe}'; restore it with its own"
        )
    if header["model"] != identity.hex():
        raise KvikError("the saved sequence belongs to another model; restore it with its own")
    if header["layout"] != layout_digest(plan):
        raise KvikError(
            f"the saved sequence belongs to another version of kvik or of a stage; {AGAIN}"
        )
    if domain is not None and header["domain"] != domain:
        raise KvikError("the saved sequence belongs to another domain; restore it in its own")


def _check_sizes(header: dict[str, Any], reader: Reader, plan: Plan) -> None:
    """Whether the file is as long as its header implies; costs nothing for a huge claim."""
    length, text = header["length"], 8 * (header["ids"] + header["marks"])
    reader.expect(text)
    if length != (0 if plan.recompute else header["ids"]):
        raise KvikError(f"the saved sequence has an impossible length; {AGAIN}")
    need = text + 2 * SEAL
    for group in plan.groups:
        count = _stored(group, length)
        if group.evicting:
            need += count * (8 if "mass" in group.evicting.signals else 4)
            need += -(-count // group.tokens) * group.main.nbytes
        else:
            need += page_count(group.main_ranges(length), group.tokens) * group.main.nbytes
        if group.tail is not None:
            need += page_count(group.tail_ranges(length), group.tokens) * group.tail.nbytes
    need += sum(4 * math.prod(y.state_shape) for y in plan.spec.layers if y.kind == "state")
    reader.expect(need)
    if need < reader.left:
        raise KvikError(f"the saved sequence has bytes that belong to nothing; {AGAIN}")


def _stored(group: Group, length: int) -> int:
    """Tokens in a group whose tokens are chosen, 0 in others."""
    if group.evicting is None or group.head is None:
        return 0
    return group.evicting.stored(length, group.layers[0].index, group.head)


def _floats(reader: Reader, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(reader.array("<f4", math.prod(shape))).view(shape)


def _chosen(reader: Reader, group: Group, length: int) -> RaggedTable | None:
    """Positions and mass of a group whose tokens are chosen, its pages still to come."""
    if group.evicting is None:
        return None
    count = _stored(group, length)
    positions = reader.array("<i4", count)
    mass = _floats(reader, (count,)) if "mass" in group.evicting.signals else None
    return RaggedTable(positions, mass=mass)


def _check_chosen(table: RaggedTable | None, length: int) -> None:
    if table is None or not table.positions.size:
        return
    positions = table.positions
    if positions[0] < 0 or positions[-1] >= length or (positions[1:] <= positions[:-1]).any():
        raise KvikError(f"the saved sequence names impossible positions; {AGAIN}")
    if table.mass is not None and not bool((table.mass.isfinite() & (table.mass >= 0)).all()):
        raise KvikError(f"the saved sequence has impossible attention sums; {AGAIN}")


def _main(
    cache: KVCache, group: Group, length: int, chosen: RaggedTable | None, taken: list[Ids]
) -> Table | RaggedTable:
    if chosen is not None:
        count = -(-chosen.positions.size // group.tokens)
        pages = _alloc(cache, group.main.nbytes, count, taken)
        return RaggedTable(chosen.positions, pages, chosen.mass)
    numbers = np.asarray(pages_of(group.main_ranges(length), group.tokens), dtype=np.int32)
    return Table(numbers, _alloc(cache, group.main.nbytes, numbers.size, taken))


def _tail(cache: KVCache, group: Group, length: int, taken: list[Ids]) -> Table | None:
    if group.tail is None:
        return None
    numbers = np.asarray(pages_of(group.tail_ranges(length), group.tokens), dtype=np.int32)
    return Table(numbers, _alloc(cache, group.tail.nbytes, numbers.size, taken))


def _alloc(cache: KVCache, nbytes: int, count: int, taken: list[Ids]) -> Ids:
    pages = cache.pool.alloc(nbytes, count)
    taken.append(pages)
    return pages


def _fill(reader: Reader, cache: KVCache, page: PageFormat, pages: Ids) -> None:
    """Reads the content of pages, a slice at a time."""
    rows = cache.pool.buffer.view(-1, ALIGN)
    for part in slices(pages.size, page.nbytes):
        count = pages[part].size * page.nbytes
        data = torch.from_numpy(reader.array("<u1", count)).view(-1, ALIGN)
        rows[torch.from_numpy(rows_of(pages[part], page.nbytes))] = data
