"""Attention of one step of one sequence in a group that keeps tokens by position.

A stream's tokens at the start of a step at position n0 with n new tokens:

    0 .. closed(n0)              coded, in main pages (those still kept)
    closed(n0) .. closed(n0+n)   coded during the step: encoded once, then seen and stored
    closed(n0) .. n0             held in full precision, in tail pages
    n0 .. n0+n                   new

A query at position p sees a coded token from ``closes_at`` on and the full-precision token before
that; both exist for the length of a step, as two entries with disjoint visibility.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kvik.cache.pageio import gather, scatter
from kvik.cache.pool import Ids, PagePool
from kvik.cache.table import Table
from kvik.ops import Keys
from kvik.recipe.codec import Codec, Stream
from kvik.recipe.layout import PlaneSlot
from kvik.recipe.plan import Group, LayerPlan
from kvik.recipe.resolve import tail_codec
from kvik.recipe.retention import FOREVER

Planes = dict[str, Tensor]


@dataclass(frozen=True)
class Entries:
    """Which cached values each entry pairs: indices into the K and V values, and visibility.

    An index of None takes all values in order.
    """

    k: Tensor | None
    v: Tensor | None
    position: Tensor
    first: Tensor
    until: Tensor
    sinks: int


class PositionalStep:
    """What the layers of a group see of a sequence in a step, and where they write.

    ``stop``, ``table`` and ``tail`` shrink when drafts are taken back.
    """

    def __init__(
        self,
        pool: PagePool,
        group: Group,
        old: tuple[Table, Table | None],
        new: tuple[Table, Table | None],
        span: tuple[int, int],
    ) -> None:
        """Tables before and after the tokens ``span`` = [start, stop)."""
        self.pool, self.group = pool, group
        self.start, self.stop = span
        self.old_main, self.old_tail = old
        self.table, self.tail = new
        self._target_cache: dict[tuple[int, ...], tuple[Tensor, Tensor, Tensor | None]] = {}

    # What the layers of the group see

    @cached_property
    def _stored(self) -> tuple[Tensor, Tensor]:
        """Page ids [N] and positions [N * tokens] of the main pages published before the step."""
        return _long(self.old_main.pages), _positions(self.old_main, self.group.tokens)

    @cached_property
    def _held(self) -> tuple[Tensor, Tensor]:
        """The same for tail pages."""
        assert self.old_tail is not None
        return _long(self.old_tail.pages), _positions(self.old_tail, self.group.tokens)

    def stream(
        self, layer: LayerPlan, stream: Stream, new: Tensor
    ) -> tuple[Tensor, Planes, Planes]:
        """All values of a stream for this step, and what has to be written.

        ``new`` [H, n, D] float32 are the step's tokens. Returns the values [H, E, D] in the order
        of :meth:`sources`, the codes that close in this step, and the new tokens as they are held.
        """
        codec = layer.codec(stream)
        closed, closing = codec.closed(self.start), codec.closed(self.stop)
        pages, positions = self._stored
        have = int(torch.searchsorted(positions, closed))
        values = []
        if have:
            planes = gather(self.pool, self.group.main.of(layer.index, stream), pages)
            values.append(codec.decode(planes)[:, :have])
        codes: Planes = {}
        if codec.immediate:
            codes = codec.encode(new)
            return torch.cat([*values, codec.decode(codes)], 1), codes, {}
        held = tail_codec(codec)
        fresh = held.encode(new)
        raw = held.decode(fresh)
        if closed < self.start:
            assert self.group.tail is not None
            pages, positions = self._held
            planes = gather(self.pool, self.group.tail.of(layer.index, stream), pages)
            low, high = torch.searchsorted(positions, torch.tensor([closed, self.start])).tolist()
            raw = torch.cat((held.decode(planes)[:, low:high], raw), 1)
        if closing > closed:
            codes = codec.encode(raw[:, : closing - closed].contiguous())
            values.append(codec.decode(codes))
        return torch.cat([*values, raw], 1), codes, fresh

    def sources(self, codec: Codec) -> tuple[Tensor, Tensor, Tensor]:
        """Position and visibility [first, until) of each value that :meth:`stream` returns."""
        closed, closing = codec.closed(self.start), codec.closed(self.stop)
        stored = self._stored[1]
        stored = stored[: int(torch.searchsorted(stored, closed))]
        coded = torch.cat((stored, torch.arange(closed, closing)))
        group = codec.close_tokens
        closes = (coded // group + 1) * group - 1 + codec.residual
        forever = torch.full_like(coded, FOREVER)
        if codec.immediate:
            return coded, coded, forever
        raw = torch.arange(closed, self.stop)
        ends = (raw // group + 1) * group - 1 + codec.residual
        return (
            torch.cat((coded, raw)),
            torch.cat((closes, raw)),
            torch.cat((forever, ends)),
        )

    @cached_property
    def entries(self) -> Entries:
        """Pairs every K value with the V values that some query sees together with it."""
        layer = self.group.layers[0]
        position, first, until = self.sources(layer.k)
        index = torch.arange(position.numel())
        k, v, alike = index, index, True
        if layer.v is not None and _closing(layer.k) != _closing(layer.v):
            k, v, position, first, until = self._pair(layer.k, layer.v)
            alike = False
        expires = expiry(position, layer)
        until = torch.minimum(until, expires)
        used = (first < until) & (until > self.start) & (first < self.stop)
        sinks = position < layer.kept.sinks if layer.kept.in_cache else position < 0
        order = torch.cat((torch.nonzero(used & sinks), torch.nonzero(used & ~sinks))).flatten()
        count = int((used & sinks).sum())
        whole = alike and torch.equal(order, index)
        k_index, v_index = (None, None) if whole else (k[order], v[order])
        return Entries(k_index, v_index, position[order], first[order], until[order], count)

    def _pair(self, kc: Codec, vc: Codec) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        kp, kf, ku = self.sources(kc)
        vp, vf, vu = self.sources(vc)
        order = torch.argsort(vp, stable=True)
        sorted_v = vp[order]
        low = torch.searchsorted(sorted_v, kp, right=False)
        high = torch.searchsorted(sorted_v, kp, right=True)
        ks, vs = [], []
        for offset in range(2):  # a token has at most two values: held and coded
            here = torch.nonzero(low + offset < high).flatten()
            ks.append(here)
            vs.append(order[low[here] + offset])
        k, v = torch.cat(ks), torch.cat(vs)
        first, until = torch.maximum(kf[k], vf[v]), torch.minimum(ku[k], vu[v])
        return k, v, kp[k], first, until

    def keys(self, k_values: Tensor, v_values: Tensor) -> Keys:
        """The entries of one layer, ready for attention."""
        e = self.entries
        k = k_values if e.k is None else k_values.index_select(1, e.k)
        v = v_values if e.v is None else v_values.index_select(1, e.v)
        return Keys(k, v, e.position, e.first, e.until, e.sinks)

    def store(self, layer: LayerPlan, stream: Stream, codes: Planes, held: Planes) -> None:
        """Writes the closing codes and the held tokens into the staged pages."""
        codec = layer.codec(stream)
        closed, closing = codec.closed(self.start), codec.closed(self.stop)
        if closing > closed:
            slots = self.group.main.of(layer.index, stream)
            self._write(self.table, slots, closed, closing, codes)
        if held and self.tail is not None:
            assert self.group.tail is not None
            slots = self.group.tail.of(layer.index, stream)
            self._write(self.tail, slots, self.start, self.stop, held)

    def _write(
        self, table: Table, slots: tuple[PlaneSlot, ...], low: int, high: int, planes: Planes
    ) -> None:
        """Stores the codes of tokens low .. high whose pages the table has."""
        if not table.pages.size:
            return
        for slot in slots:
            pages, unit, keep = self._targets(table, low, high, slot.plane.tokens)
            plane = planes[slot.name][:, : (high - low) // slot.plane.tokens]
            plane = plane if keep is None else plane[:, keep]
            scatter(self.pool, (slot,), pages, unit, {slot.name: plane})

    def _targets(
        self, table: Table, low: int, high: int, span: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Page id and unit of every group of ``span`` tokens, and which groups have a page."""
        key = (id(table), low, high, span)
        if key not in self._target_cache:
            first = torch.arange(low, high, span)
            numbers, have = first // self.group.tokens, _long(table.numbers)
            at = torch.searchsorted(have, numbers).clamp(max=have.numel() - 1)
            keep = torch.nonzero(have[at] == numbers).flatten()
            unit = first[keep] % self.group.tokens // span
            kept = None if keep.numel() == first.numel() else keep
            self._target_cache[key] = (_long(table.pages)[at[keep]], unit, kept)
        return self._target_cache[key]


def _closing(codec: Codec) -> tuple[int, int]:
    return codec.close_tokens, codec.residual


def _long(ids: Ids) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64))


def _positions(table: Table, tokens: int) -> Tensor:
    first = _long(table.numbers) * tokens
    return (first.unsqueeze(1) + torch.arange(tokens)).flatten()


def expiry(position: Tensor, layer: LayerPlan) -> Tensor:
    """First query position [E] that no longer sees the token at each ``position`` [E]."""
    kept = layer.kept
    if kept.window is None:
        return torch.full_like(position, FOREVER)
    return torch.where(position < kept.sinks, FOREVER, position + kept.window)
