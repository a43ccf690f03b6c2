"""Going back: the state after fewer tokens, from the tables alone."""

from __future__ import annotations

import numpy as np

from kvik.cache.change import numbers_of
from kvik.cache.table import RaggedTable, State, Table
from kvik.recipe.plan import Plan, page_ranges
from kvik.recipe.retention import Ranges


def can_cut(plan: Plan, state: State, length: int) -> bool:
    """Whether all that ``length`` tokens need is still stored, and in the form it had then."""
    if length == state.length:
        return True
    if not 0 <= length < state.length or any(s is not None for s in state.layer_states):
        return False
    for group, main in zip(plan.groups, state.main, strict=True):
        if isinstance(main, RaggedTable):
            return False
        if group.tail is not None and group.waiting(length) != group.waiting(state.length):
            return False
        wanted = numbers_of(page_ranges(group.main_ranges(length), group.tokens))
        if not np.isin(wanted, main.numbers).all():
            return False
    return True


def cut(plan: Plan, state: State, length: int) -> State:
    """The state after ``length`` tokens, for which :func:`can_cut` holds."""
    if length == state.length:
        return state
    main: list[Table | RaggedTable] = []
    tail: list[Table | None] = []
    for group, m, t in zip(plan.groups, state.main, state.tail, strict=True):
        assert isinstance(m, Table)
        main.append(_only(m, page_ranges(group.main_ranges(length), group.tokens)))
        tail.append(t and _only(t, page_ranges(group.tail_ranges(length), group.tokens)))
    return State(length, tuple(main), tuple(tail), state.layer_states)


def _only(table: Table, ranges: Ranges) -> Table:
    """The table with nothing but these page numbers, all of which it has."""
    keep = np.isin(table.numbers, numbers_of(ranges))
    return Table(table.numbers[keep], table.pages[keep])
