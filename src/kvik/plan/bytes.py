"""Bytes of a plan, from the same page formats that the allocator and the kernels use."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvik.recipe.plan import Group, Plan, page_count, page_ranges
from kvik.recipe.retention import Ranges

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
    state = sum(layer.state_bytes for layer in plan.spec.layers)
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


def step_peak(plan: Plan, tokens: int) -> dict[int, int]:
    """For each page size the most pages that a sequence holds while it grows to ``tokens`` tokens.

    One token a step, and the pages before and after a step at once. Exact for groups that keep
    tokens by position; each evicting head counts with its own worst step.
    """
    placed = [g for g in plan.groups if g.evicting is None]
    # Everything repeats with this period, or grows: the last one has the highest step.
    spans = [c.close_tokens for g in placed for c in g.layers[0].codecs]
    period = math.lcm(1, *(g.tokens for g in placed), *spans)
    most = dict.fromkeys(plan.page_bytes, 0)
    first = max(0, tokens - period)
    before = [_page_ranges(g, first) for g in placed]
    for seen in range(first + 1, tokens + 1):
        after = [_page_ranges(g, seen) for g in placed]
        held = dict.fromkeys(most, 0)
        for old, new in zip(before, after, strict=True):
            for (nbytes, a), (_, b) in zip(old, new, strict=True):
                held[nbytes] += _either(a, b)
        most = {nbytes: max(count, held[nbytes]) for nbytes, count in most.items()}
        before = after
    for group in plan.groups:
        if group.evicting is not None and group.head is not None:
            most[group.main.nbytes] += _evicting_peak(group, tokens)
    return most


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


def _page_ranges(group: Group, seen: int) -> list[tuple[int, Ranges]]:
    """Page size and page numbers of the main and the tail pages."""
    found = [(group.main.nbytes, page_ranges(group.main_ranges(seen), group.tokens))]
    if group.tail is not None:
        found.append((group.tail.nbytes, page_ranges(group.tail_ranges(seen), group.tokens)))
    return found


def _either(a: Ranges, b: Ranges) -> int:
    """How many numbers lie in either of two lists of ranges."""
    both = sum(max(0, min(x[1], y[1]) - max(x[0], y[0])) for x in a for y in b)
    return sum(stop - start for start, stop in [*a, *b]) - both


def _evicting_peak(group: Group, tokens: int) -> int:
    """The fullest step of a head: at its last event, just before that, or at the end."""
    policy, size = group.evicting, group.tokens
    assert policy is not None
    assert group.head is not None
    last = max(0, tokens - 1) // policy.interval * policy.interval
    most = 0
    for seen in {last, last + 1, tokens} - {0}:
        if seen > tokens:
            continue
        old, new = (policy.stored(n, group.layers[0].index, group.head) for n in (seen - 1, seen))
        event = seen - 1 == last > 0
        kept = 0 if event else old // size
        most = max(most, -(-old // size) + -(-new // size) - kept)
    return most
