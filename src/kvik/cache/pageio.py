"""Moving codes between tensors and pages: one gather and one scatter for every codec."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kvik.cache.pool import PagePool
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


def copy_pages(pool: PagePool, nbytes: int, source: Tensor, target: Tensor) -> None:
    """Copies whole pages of ``nbytes``; ids [N] int64."""
    rows = pool.buffer.view(torch.int64).view(-1, ALIGN // 8)
    count = torch.arange(nbytes // ALIGN)
    rows[(target.unsqueeze(1) + count).flatten()] = rows[(source.unsqueeze(1) + count).flatten()]
