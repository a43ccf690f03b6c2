"""Moving codes between tensors and pages: one gather and one scatter for every codec."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from kvik.cache.pool import Ids, PagePool
from kvik.recipe.layout import ALIGN, PlaneSlot


def gather(pool: PagePool, slots: tuple[PlaneSlot, ...], pages: Tensor) -> dict[str, Tensor]:
    """All units of the pages [N] (int64 ids) of one stream: planes [H, N * units, *shape]."""
    rows = pool.buffer.view(torch.int64).view(-1, ALIGN // 8)
    planes = {}
    for slot in slots:
        count = -(-slot.nbytes // ALIGN)
        index = (pages + slot.offset // ALIGN).unsqueeze(1) + torch.arange(count)
        raw = rows.index_select(0, index.flatten()).view(torch.uint8)
        raw = raw.view(pages.numel(), count * ALIGN)[:, : slot.nbytes]
        items = raw.reshape(-1).view(getattr(torch, slot.plane.dtype))
        units = items.view(pages.numel(), slot.heads, slot.units, *slot.plane.shape)
        planes[slot.name] = units.transpose(0, 1).flatten(1, 2)
    return planes


def scatter(
    pool: PagePool,
    slots: tuple[PlaneSlot, ...],
    pages: Tensor,
    units: Tensor,
    planes: dict[str, Tensor],
) -> None:
    """Writes unit i of ``planes`` [H, n, *shape] to unit ``units[i]`` of page ``pages[i]``."""
    for slot in slots:
        value = planes[slot.name]
        width = slot.plane.unit_bytes
        word = math.gcd(width, ALIGN)
        per = width // word
        head = torch.arange(slot.heads).unsqueeze(1) * slot.units
        unit = head + units.unsqueeze(0)
        start = (pages * ALIGN + slot.offset).unsqueeze(0) // word + unit * per
        index = (start.unsqueeze(-1) + torch.arange(per)).flatten()
        raw = value.contiguous().view(torch.uint8) if value.dim() > 2 else value
        raw = raw.reshape(-1).view(torch.uint8).view(-1, word)
        pool.buffer.view(-1, word).index_copy_(0, index, raw)


def copy_pages(pool: PagePool, nbytes: int, source: Ids, target: Ids) -> None:
    """Copies whole pages of ``nbytes``; ids [N]."""
    rows = pool.buffer.view(torch.int64).view(-1, ALIGN // 8)
    rows[rows_of(target, nbytes)] = rows[rows_of(source, nbytes)]


def read_pages(pool: PagePool, nbytes: int, ids: Ids) -> Tensor:
    """A copy [N, nbytes] of whole pages [N]."""
    rows = pool.buffer.view(torch.int64).view(-1, ALIGN // 8)
    return rows[rows_of(ids, nbytes)].view(torch.uint8).view(ids.size, nbytes)


def write_pages(pool: PagePool, nbytes: int, ids: Ids, data: Tensor) -> None:
    """Overwrites whole pages [N] with ``data`` [N, nbytes]."""
    rows = pool.buffer.view(torch.int64).view(-1, ALIGN // 8)
    rows[rows_of(ids, nbytes)] = data.view(torch.int64).view(-1, ALIGN // 8)


def rows_of(ids: Ids, nbytes: int) -> Tensor:
    """The 64-byte rows [N * nbytes / 64] of pages [N] of ``nbytes``."""
    start = torch.from_numpy(ids.astype(np.int64)).unsqueeze(1)
    return (start + torch.arange(nbytes // ALIGN)).flatten()
