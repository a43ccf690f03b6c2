"""What a cache really holds of a sequence: positions and bytes of each layer, from its tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvik.cache.table import RaggedTable, State, Table
from kvik.recipe.layout import align
from kvik.recipe.plan import Plan

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Held:
    """Half-open ranges of positions that ``layers`` hold; ``head`` None where all heads do."""

    layers: tuple[int, ...]
    head: int | None
    spans: list[tuple[int, int]]


def held(plan: Plan, state: State) -> list[Held]:
    """The positions that each layer's pages hold, whatever the recipe says they should.

    Pages are whole: a window holds up to a page more than a query sees. Layers that share
    another's cache, or keep none, are left out.
    """
    found = []
    for group, main, tail in zip(plan.groups, state.main, state.tail, strict=True):
        at = _positions(main, group.tokens)
        if tail is not None:
            at = np.union1d(at, _positions(tail, group.tokens))
        layers = tuple(layer.index for layer in group.layers)
        found.append(Held(layers, group.head, _runs(at[at < state.length])))
    return found


def _positions(table: Table | RaggedTable, tokens: int) -> Positions:
    if isinstance(table, RaggedTable):
        return np.unique(table.positions.astype(np.int64))
    first = table.numbers.astype(np.int64) * tokens
    return np.unique((first[:, None] + np.arange(tokens)).reshape(-1))


def _runs(ascending: Positions) -> list[tuple[int, int]]:
    """Half-open ranges of distinct ascending numbers."""
    if not ascending.size:
        return []
    cuts = np.flatnonzero(np.diff(ascending) > 1)
    first = ascending[np.append(0, cuts + 1)]
    last = ascending[np.append(cuts, ascending.size - 1)]
    return [(int(a), int(b) + 1) for a, b in zip(first, last, strict=True)]


def layer_bytes(plan: Plan, state: State) -> list[int]:
    """Bytes allocated for each layer of the model: its share of every page, and its state.

    With :func:`table_bytes` they add up to all that the sequence holds.
    """
    sizes = [0] * len(plan.spec.layers)
    for group, main, tail in zip(plan.groups, state.main, state.tail, strict=True):
        for form, table in ((group.main, main), (group.tail, tail)):
            if form is not None and table is not None:
                for slot in form.slots:
                    sizes[slot.layer] += table.pages.size * align(slot.nbytes)
    for index, kept in enumerate(state.layer_states):
        if kept is not None:
            sizes[index] += kept.numel() * kept.element_size()
    return sizes


def table_bytes(state: State) -> int:
    """Bytes of the block tables, which belong to no single layer."""
    return sum(t.nbytes for t in (*state.main, *state.tail) if t is not None)
