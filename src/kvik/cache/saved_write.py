"""Writing a sequence into a file object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from kvik.cache.container import Writer
from kvik.cache.kvcache import KVCache
from kvik.cache.pool import Ids
from kvik.cache.saved_text import Saved, check_text, layout_digest
from kvik.cache.table import RaggedTable, State, Table
from kvik.errors import KvikError
from kvik.recipe.layout import ALIGN, PageFormat
from kvik.recipe.plan import Plan

SLICE = 8 << 20  # bytes of pages that are in memory twice at a time


def write(file: BinaryIO, cache: KVCache, saved: Saved, identity: bytes) -> None:
    """Equal sequences give equal bytes.

    What lies in unused places of their pages (remains of other sequences) is left out.
    """
    state, plan = saved.sequence.state, cache.resolved
    try:
        ids = np.asarray(saved.ids, dtype="<i8")
        marks = np.unique(np.asarray(saved.marks, dtype="<i8"))
    except (OverflowError, ValueError, TypeError):
        raise KvikError("ids and marks are whole numbers of at most 63 bits") from None
    check_text(plan, state.length, ids, marks)
    header = {
        "layout": layout_digest(plan),
        "model": identity.hex(),
        "recipe": str(plan.recipe),
        "recipe_digest": plan.recipe.digest,
        "domain": saved.domain,
        "length": state.length,
        "ids": ids.size,
        "marks": marks.size,
    }
    out = Writer(file, header)
    out.write(ids)
    out.write(marks)
    _tables(out, state)
    out.seal()
    for pages in _all_pages(cache, plan, state):
        out.write(pages)
    out.seal()


def _tables(out: Writer, state: State) -> None:
    for main in state.main:
        if isinstance(main, RaggedTable):
            out.write(np.asarray(main.positions, dtype="<i4"))
            if main.mass is not None:
                out.write(main.mass.numpy())
    for layer_state in state.layer_states:
        if layer_state is not None:
            out.write(layer_state.numpy())


def _all_pages(cache: KVCache, plan: Plan, state: State) -> Iterator[NDArray[np.uint8]]:
    for group, main, tail in zip(plan.groups, state.main, state.tail, strict=True):
        if isinstance(main, RaggedTable):
            numbers = np.arange(main.pages.size, dtype=np.int32)
            written = [main.positions.size] * len(group.main.slots)
        else:
            numbers = main.numbers
            layers = {lp.index: lp for lp in group.layers}
            codecs = (layers[s.layer].codec(s.stream) for s in group.main.slots)
            written = [codec.closed(state.length) for codec in codecs]
        yield from _pages(cache, Table(numbers, main.pages), group.main, written)
        if tail is not None and group.tail is not None:
            yield from _pages(cache, tail, group.tail, [state.length] * len(group.tail.slots))


def _pages(
    cache: KVCache, table: Table, page: PageFormat, written: list[int]
) -> Iterator[NDArray[np.uint8]]:
    """The pages of a table; of each plane only what its first ``written`` tokens have put there."""
    rows = cache.pool.buffer.view(-1, ALIGN).numpy()
    for part in slices(table.pages.size, page.nbytes):
        first = table.numbers[part].astype(np.int64) * page.tokens
        source = rows[rows_of(table.pages[part], page.nbytes)].reshape(first.size, page.nbytes)
        kept = np.zeros_like(source)
        for slot, tokens in zip(page.slots, written, strict=True):
            place = slice(slot.offset, slot.offset + slot.nbytes)
            units = source[:, place].reshape(-1, slot.heads, slot.units, slot.plane.unit_bytes)
            used = np.arange(slot.units) < ((tokens - first) // slot.plane.tokens)[:, None]
            kept[:, place] = np.where(used[:, None, :, None], units, 0).reshape(first.size, -1)
        yield kept


def slices(count: int, nbytes: int) -> Iterator[slice]:
    """Cuts ``count`` pages of ``nbytes`` into runs of at most ``SLICE`` bytes, or of one page."""
    step = max(1, SLICE // nbytes)
    return (slice(at, min(at + step, count)) for at in range(0, count, step))


def rows_of(pages: Ids, nbytes: int) -> NDArray[np.int64]:
    """The 64-byte rows [N * nbytes / 64] of pages [N] in the pool's buffer."""
    return (pages.astype(np.int64)[:, None] + np.arange(nbytes // ALIGN)).reshape(-1)
