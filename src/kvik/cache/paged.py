"""A step as the native kernels see it: which pages hold the tokens of each sequence.

New tokens are written to pages before attention reads them. A chunk longer than a window has
tokens that no page will keep, but its own later queries see them: they go to scratch pages, which
last as long as the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvik.cache.pool import Ids
from kvik.cache.step import Step
from kvik.cache.table import Table
from kvik.native import library
from kvik.ops import angles_at
from kvik.ops.native_attention import NativeBatch, NativeLayer, NativeTables, Place, Turn
from kvik.ops.native_layers import LayerStores, Places
from kvik.recipe.plan import Plan
from kvik.spec.model import Rope

Pairs = list[tuple[Table, Table]]


@dataclass(frozen=True)
class PagedLayer:
    """A layer that the native kernels attend, and what it has in common with others.

    Layers of one ``group`` have the same tables, those of one ``turn`` rotate by the same angles;
    ``shared``: other layers read what it writes.
    """

    native: NativeLayer
    group: int
    turn: int
    shared: bool

    @property
    def owner(self) -> int:
        """Whose scratch pages it uses: all layers' in turn, or its own."""
        return self.native.plan.index if self.shared else -1

    @property
    def place(self) -> tuple[int, ...]:
        """The same for layers that have one place in every step."""
        return self.group, self.turn, self.owner, self.native.scratch


def paged_layers(plan: Plan) -> list[PagedLayer | None]:
    """Every layer of a plan; None for those that the native kernels cannot attend."""
    found: list[PagedLayer | None] = []
    turns: dict[tuple[Rope | None, int | None], int] = {}
    read = {layer.source for layer in plan.spec.layers if layer.kind == "shared"}
    for index, spec in enumerate(plan.spec.layers):
        source = index if spec.source is None else spec.source
        stored, groups = plan.layers[source], plan.groups_of_layer.get(source, ())
        native = None
        if stored is not None and len(groups) == 1 and groups[0].evicting is None:
            native = NativeLayer.of(spec, stored, groups[0].main)
        if native is None or spec.kind == "latent":
            found.append(None)
        else:
            turn = turns.setdefault((spec.rope, native.span), len(turns))
            found.append(PagedLayer(native, groups[0].index, turn, source in read))
    return found


@dataclass(frozen=True)
class Run:
    """Layers one after another: what a cache knows of them, and one layer for each place."""

    stores: LayerStores
    layers: tuple[PagedLayer, ...]

    @classmethod
    def of(cls, layers: Sequence[PagedLayer | None]) -> Run | None:
        """None when the native kernels cannot attend one of them."""
        found = [layer for layer in layers if layer is not None]
        if len(found) < len(layers):
            return None
        places = {layer.place: layer for layer in found}
        which = {place: i for i, place in enumerate(places)}
        stores = LayerStores([layer.native for layer in found], [which[i.place] for i in found])
        return cls(stores, tuple(places.values()))


class Paged:
    """A cache as the native kernels see it: layers, which stay, and the tables of a step."""

    def __init__(self, plan: Plan) -> None:
        self._layers = paged_layers(plan)
        self._runs: dict[tuple[int, ...], Run | None] = {}
        self._known: dict[int, tuple[Pairs, NativeTables]] = {}
        self._now: PagedStep | None = None

    def place(self, layer: int, step: Step) -> Place | None:
        """Where a layer's tokens are in a step; None when the native kernels cannot attend it."""
        paged = self._layers[layer]
        return None if paged is None or library() is None else self._of(step).place(paged)

    def places(self, layers: tuple[int, ...], step: Step) -> Places | None:
        """The same of layers that are run one after another."""
        if library() is None:
            return None
        if layers not in self._runs:
            self._runs[layers] = Run.of([self._layers[layer] for layer in layers])
        run = self._runs[layers]
        return None if run is None else self._of(step).places(run)

    def _of(self, step: Step) -> PagedStep:
        if self._now is None or self._now.step is not step:
            self._now = PagedStep(step, self._known)
        return self._now


class PagedStep:
    """The native side of one step; everything is made when a layer first asks for it.

    ``known`` outlasts it: for each group the tables of the step before.
    """

    def __init__(self, step: Step, known: dict[int, tuple[Pairs, NativeTables]]) -> None:
        self.step, self._known = step, known
        self._starts = [state.length for state in step.before]
        self._batches: dict[int, NativeBatch] = {}
        self._turns: dict[int, Turn] = {}
        self._scratch: dict[int, Tensor] = {}

    def place(self, layer: PagedLayer) -> Place:
        """Where a layer's tokens are."""
        batch = self._batch(layer.group)
        return Place(layer.native, batch, self._turn(layer), self._scratch_of(layer, batch))

    def places(self, run: Run) -> Places:
        """Where the tokens of all layers of a run are."""
        return Places(run.stores, [self.place(layer) for layer in run.layers])

    def _turn(self, layer: PagedLayer) -> Turn:
        if layer.turn not in self._turns:
            at, rope, span = self.step.at, layer.native.spec.rope, layer.native.span
            second = None if span is None else _angles(rope, [min(p, span - 1) for p in at])
            self._turns[layer.turn] = Turn(_angles(rope, at), second)
        return self._turns[layer.turn]

    def _scratch_of(self, layer: PagedLayer, batch: NativeBatch) -> Tensor | None:
        """Room for the layer's scratch pages."""
        if not batch.scratch_pages:
            return None
        owner, need = layer.owner, batch.scratch_pages * layer.native.scratch
        if owner not in self._scratch or self._scratch[owner].numel() < need:
            self._scratch[owner] = torch.empty(need, dtype=torch.uint8)
        return self._scratch[owner]

    def _batch(self, group: int) -> NativeBatch:
        if group not in self._batches:
            tables = self._tables(group)
            self._batches[group] = NativeBatch(tables, self._starts, self.step.counts)
        return self._batches[group]

    def _tables(self, group: int) -> NativeTables:
        """Those of the step before, where every sequence goes on in the page that it was in."""
        pairs, counts = list(self.step.tables(group)), self.step.counts
        if group in self._known and max(counts, default=1) == 1:
            of, tables = self._known[group]
            if of == pairs and tables.hold(self._starts, counts):
                return tables
        tables, lasting = self._joined(pairs, self.step.plan.groups[group].tokens)
        if lasting:
            self._known[group] = pairs, tables
        return tables

    def _joined(self, pairs: Pairs, tokens: int) -> tuple[NativeTables, bool]:
        """The tables of all sequences, and whether they are nothing but those before the step."""
        numbers, refs, scratch, lasting = [], [], 0, True
        for (old, new), start, count in zip(pairs, self._starts, self.step.counts, strict=True):
            span, have, at = (start, start + count), old.numbers, old.pages
            if new is not old or not _holds(old, span, tokens):
                have, at, scratch = _union(old, new, span, tokens, scratch)
                lasting = False
            numbers.append(have)
            refs.append(at)
        return NativeTables(self.step.pool.buffer, numbers, refs, scratch, tokens), lasting


def _angles(rope: Rope | None, at: Sequence[int]) -> NDArray[np.float32]:
    if rope is None:
        return np.empty((2, len(at), 0), dtype=np.float32)
    return angles_at(rope, at)


def _holds(table: Table, span: tuple[int, int], tokens: int) -> bool:
    """Whether the table has a page for every token of the span: a window of 1 stores none."""
    first, last = span[0] // tokens, (span[1] - 1) // tokens
    at = table.numbers.size - 1 - (last - first)
    return at >= 0 and int(table.numbers[at]) == first and int(table.numbers[-1]) == last


def _union(
    old: Table, new: Table, span: tuple[int, int], tokens: int, scratch: int
) -> tuple[Ids, Ids, int]:
    """Page numbers and references of all that a chunk sees, and the scratch pages used so far.

    Pages after the step first, then those that it drops, then scratch for what no page keeps.
    """
    chunk = np.arange(span[0] // tokens, (span[1] - 1) // tokens + 1, dtype=np.int32)
    numbers = np.unique(np.concatenate((old.numbers, new.numbers, chunk)))
    refs = np.full(numbers.size, -1, dtype=np.int32)
    refs[np.searchsorted(numbers, old.numbers)] = old.pages
    refs[np.searchsorted(numbers, new.numbers)] = new.pages
    missing = np.flatnonzero(refs < 0)
    refs[missing] = -1 - scratch - np.arange(missing.size, dtype=np.int32)
    return numbers, refs, scratch + int(missing.size)
