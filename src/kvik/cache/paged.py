"""A step as the native kernels see it: which pages hold the tokens of each sequence.

New tokens are written to pages before attention reads them. A chunk longer than a window has
tokens that no page will keep, but its own later queries see them: they go to scratch pages, which
last as long as the step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kvik.cache.pool import Ids
from kvik.cache.step import Step
from kvik.cache.table import EMPTY, Table
from kvik.ops import angles
from kvik.ops.native_attention import NativeBatch, NativeLayer, Place, Turn
from kvik.recipe.plan import Plan
from kvik.spec.model import Rope


def native_layers(plan: Plan) -> list[NativeLayer | None]:
    """For each layer what the native kernels need to attend it; None where they cannot."""
    found: list[NativeLayer | None] = []
    turns: dict[tuple[Rope | None, int | None], int] = {}
    for index, spec in enumerate(plan.spec.layers):
        source = index if spec.source is None else spec.source
        stored, groups = plan.layers[source], plan.groups_of_layer.get(source, ())
        positional = len(groups) == 1 and groups[0].evicting is None
        if stored is None or not positional or spec.kind == "latent":
            found.append(None)
        else:
            layer = NativeLayer.of(spec, stored, groups[0].main)
            if layer is not None:
                turn = turns.setdefault((spec.rope, layer.span), len(turns))
                layer = replace(layer, turn=turn)
            found.append(layer)
    return found


class PagedStep:
    """The native side of one step; everything is made when a layer first asks for it."""

    def __init__(self, step: Step) -> None:
        self._step = step
        counts = np.array((0, *step.counts), dtype=np.int64)
        self._row = np.cumsum(counts)
        self._start = np.array([s.length for s in step.before], dtype=np.int64)
        self._batches: dict[int, NativeBatch] = {}
        self._turns: dict[int, Turn] = {}
        self._scratch: dict[int, Tensor] = {}

    def place(self, layer: NativeLayer, group: int, shared: bool) -> Place:
        """Where a layer's tokens are; with ``shared`` other layers will read what it writes."""
        batch = self._batch(group)
        scratch = self._scratch_of(layer, batch, shared)
        return Place(layer, batch, self._turn(layer), scratch)

    def _turn(self, layer: NativeLayer) -> Turn:
        if layer.turn not in self._turns:
            at, rope, span = self._step.positions, layer.spec.rope, layer.span
            first = _angles(rope, at)
            second = () if span is None else _angles(rope, at.clamp(max=span - 1))
            self._turns[layer.turn] = Turn(*first, *second)
        return self._turns[layer.turn]

    def _scratch_of(self, layer: NativeLayer, batch: NativeBatch, shared: bool) -> Tensor | None:
        """Room for the layer's scratch pages: one for all layers, but for those that are shared."""
        if not batch.scratch_pages:
            return None
        owner = layer.plan.index if shared else -1
        need = batch.scratch_pages * layer.scratch
        if owner not in self._scratch or self._scratch[owner].numel() < need:
            self._scratch[owner] = torch.empty(need, dtype=torch.uint8)
        return self._scratch[owner]

    def _batch(self, group: int) -> NativeBatch:
        if group not in self._batches:
            self._batches[group] = self._make_batch(group)
        return self._batches[group]

    def _make_batch(self, group: int) -> NativeBatch:
        tokens = self._step.plan.groups[group].tokens
        numbers, refs, scratch = [], [], 0
        for i, (old, new) in enumerate(self._step.tables(group)):
            span = int(self._start[i]), int(self._start[i]) + self._step.counts[i]
            if new is old and _holds(old, span, tokens):
                numbers.append(old.numbers)
                refs.append(old.pages)
                continue
            have, at, scratch = _union(old, new, span, tokens, scratch)
            numbers.append(have)
            refs.append(at)
        table = np.cumsum([0, *(n.size for n in numbers)], dtype=np.int64)
        return NativeBatch(
            self._step.pool.buffer,
            self._row,
            self._start,
            table,
            _joined(numbers),
            _joined(refs),
            scratch,
            tokens,
        )


def _angles(rope: Rope | None, positions: Tensor) -> tuple[Tensor, Tensor]:
    if rope is None:
        empty = torch.empty(positions.numel(), 0)
        return empty, empty
    cos, sin = angles(rope, positions, torch.float32)
    return cos.contiguous(), sin.contiguous()


def _holds(table: Table, span: tuple[int, int], tokens: int) -> bool:
    """Whether the table has a page for every token of the span: a window of 1 stores none."""
    first, last = span[0] // tokens, (span[1] - 1) // tokens
    at = table.numbers.size - 1 - (last - first)
    return at >= 0 and int(table.numbers[at]) == first and int(table.numbers[-1]) == last


def _joined(arrays: list[Ids]) -> Ids:
    return arrays[0] if len(arrays) == 1 else np.concatenate([EMPTY, *arrays])


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
