"""One step of one KV head whose tokens a policy chooses (H2O and its kin).

A step is cut at the policy's events: queries before an event see the tokens before it. Survivors
of an event are compacted into pages of their own; their codes are moved, never recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from kvik.cache.pageio import gather, scatter
from kvik.cache.pool import Ids, PagePool
from kvik.cache.table import EMPTY, RaggedTable
from kvik.ops import Keys
from kvik.recipe.codec import Stream
from kvik.recipe.plan import Group
from kvik.recipe.retention import FOREVER, Evicting

Planes = dict[str, Tensor]


class EvictingStep:
    """Working copy of one KV head's tokens during a step, and its staged table."""

    def __init__(
        self, pool: PagePool, group: Group, table: RaggedTable, span: tuple[int, int]
    ) -> None:
        """Counts the pages that the head needs after the tokens ``span`` = [start, stop)."""
        assert group.evicting is not None
        assert group.head is not None
        self.pool, self.group = pool, group
        self.old = self.new = table
        self.policy: Evicting = group.evicting
        self.layer, self.head = group.layers[0], group.head
        self.start, self.stop = span
        final = self.policy.stored(self.stop, self.layer.index, self.head)
        # Shared pages are never written: without an event only the last one could be.
        kept = 0 if any(self._events()) else table.positions.size // group.tokens
        self.keep_pages = kept
        self.need = -(-final // group.tokens) - kept
        self.fresh: Ids = EMPTY
        self.planes: dict[Stream, Planes] = {}

    def settle(self, fresh: Ids) -> None:
        """Takes the ``need`` pages that were allocated for the head."""
        self.fresh = fresh

    def _events(self) -> Iterator[int]:
        every = self.policy.interval
        first = max(every, -(-self.start // every) * every)
        return iter(range(first, self.stop, every))

    def segments(self) -> list[tuple[int, int]]:
        """Position ranges between events; an event precedes every range that starts at one."""
        cuts = sorted({self.start, *self._events(), self.stop})
        return list(pairwise(cuts))

    def load(self) -> None:
        """Reads the published tokens of the head."""
        old = self.old
        self.positions = torch.from_numpy(old.positions.astype(np.int64))
        self.mass = torch.zeros(len(self.positions)) if old.mass is None else old.mass
        pages = torch.from_numpy(self.old.pages.astype(np.int64))
        count = self.positions.numel()
        for stream in self._streams():
            slots = self.group.main.of(self.layer.index, stream)
            planes = gather(self.pool, slots, pages)
            self.planes[stream] = {name: plane[:, :count] for name, plane in planes.items()}

    def _streams(self) -> tuple[Stream, ...]:
        return ("k",) if self.layer.v is None else ("k", "v")

    def append(self, new: dict[Stream, Tensor], low: int, high: int) -> None:
        """Adds the tokens at positions low .. high, [1, n, D] float32 each, after any event."""
        if low and low % self.policy.interval == 0:
            self._evict(low)
        for stream, values in new.items():
            codes = self.layer.codec(stream).encode(values)
            old = self.planes[stream]
            self.planes[stream] = {n: torch.cat((old[n], codes[n]), 1) for n in codes}
        self.positions = torch.cat((self.positions, torch.arange(low, high)))
        self.mass = torch.cat((self.mass, torch.zeros(high - low)))

    def _evict(self, seen: int) -> None:
        keep = min(self.positions.numel(), self.policy.budget(seen, self.layer.index, self.head))
        index = self.policy.select(self.positions, self.mass, keep, seen)
        if index.numel() != keep:
            raise ValueError(f"{self.policy} kept {index.numel()} tokens and was asked for {keep}")
        self.positions, self.mass = self.positions[index], self.mass[index]
        for stream, planes in self.planes.items():
            self.planes[stream] = {n: plane[:, index] for n, plane in planes.items()}

    def keys(self) -> Keys:
        """All tokens of the head at this moment."""
        k = self.layer.k.decode(self.planes["k"])
        latent = k[..., : self.layer.spec.v_dim]
        v = latent if self.layer.v is None else self.layer.v.decode(self.planes["v"])
        until = torch.full_like(self.positions, FOREVER)
        return Keys(k, v, self.positions, self.positions, until)

    def observe(self, mass: Tensor) -> None:
        """Adds the attention [T] that the tokens received in a segment."""
        self.mass = (self.mass.double() + mass).float()

    def store(self) -> None:
        """Writes everything that is not in pages yet and stages the table."""
        first = self.keep_pages * self.group.tokens
        slot = torch.arange(first, self.positions.numel())
        pages = np.concatenate((self.old.pages[: self.keep_pages], self.fresh))
        if slot.numel():
            at = torch.from_numpy(pages.astype(np.int64))[slot // self.group.tokens]
            for stream, planes in self.planes.items():
                slots = self.group.main.of(self.layer.index, stream)
                rest = {n: plane[:, first:] for n, plane in planes.items()}
                scatter(self.pool, slots, at, slot % self.group.tokens, rest)
        mass = self.mass.clone() if "mass" in self.policy.signals else None
        positions = self.positions.numpy().astype(np.int32)
        self.new = RaggedTable(positions, pages.astype(np.int32), mass)
        self.planes = {}

    def dropped(self) -> Ids:
        """Published pages that the staged table no longer holds."""
        return self.old.pages[~np.isin(self.old.pages, self.new.pages)]
