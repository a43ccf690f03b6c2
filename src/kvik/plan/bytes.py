"""Bytes of a plan, from the same page formats that the allocator and the kernels use."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvik.recipe.plan import Group, Plan, page_count

TABLE_ENTRY = 4  # bytes of a page id, a page number or a position in a table


@dataclass(frozen=True)
class KVBytes:
    """Bytes of one sequence: ``pages`` in the pool, ``tables`` and fixed ``state`` beside it."""

    pages: int
    tables: int
    state: int

    @property
    def total(self) -> int:
        """Everything the sequence holds."""
        return self.pages + self.tables + self.state


def kv_bytes(plan: Plan, seen: int) -> KVBytes:
    """What one sequence of ``seen`` tokens holds between two steps, exactly."""
    pages = tables = 0
    for group in plan.groups:
        if group.evicting is not None and group.head is not None:
            stored = group.evicting.stored(seen, group.layers[0].index, group.head)
            count = -(-stored // group.tokens)
            pages += count * group.main.nbytes
            per_slot = TABLE_ENTRY * (2 if "mass" in group.evicting.signals else 1)
            tables += count * TABLE_ENTRY + stored * per_slot
            continue
        main = page_count(group.main_ranges(seen), group.tokens)
        tail = page_count(group.tail_ranges(seen), group.tokens)
        pages += main * group.main.nbytes + tail * (group.tail.nbytes if group.tail else 0)
        tables += (main + tail) * 2 * TABLE_ENTRY
    state = sum(4 * math.prod(s.state_shape) for s in plan.spec.layers if s.kind == "state")
    return KVBytes(pages, tables, state)


def pool_capacity(plan: Plan, seen: int, slab_bytes: int, sequences: int = 1) -> int:
    """Pool bytes that always suffice for ``sequences`` sequences of up to ``seen`` tokens.

    A step holds the pages before and after it at once, so bounded groups count twice.
    """
    need: dict[int, int] = {}
    for group in plan.groups:
        main, tail = _most_pages(group, seen)
        need[group.main.nbytes] = need.get(group.main.nbytes, 0) + main
        if group.tail is not None:
            need[group.tail.nbytes] = need.get(group.tail.nbytes, 0) + tail
    slabs = sum(
        -(-count * sequences // (slab_bytes // nbytes)) for nbytes, count in need.items() if nbytes
    )
    return slabs * slab_bytes


def _most_pages(group: Group, seen: int) -> tuple[int, int]:
    tokens = group.tokens
    if group.evicting is not None and group.head is not None:
        most = group.evicting.most_stored(seen, group.layers[0].index, group.head)
        return 2 * (-(-most // tokens) + 1), 0
    bound = -(-seen // tokens) + 1
    span = group.kept.span
    if span is not None:
        bound = min(bound, -(-span // tokens) + 3)
    held = max(c.close_tokens + c.residual for c in group.layers[0].codecs)
    return 2 * bound if span is not None else bound + 1, 2 * min(bound, -(-held // tokens) + 2)
