"""Runs prompts of tiny models through a prefix cache, step by step, and solo for comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import torch
from tests import tracers
from torch import Tensor

from kvik.cache import KVCache, PagePool, Sequence
from kvik.engine.identity import Text
from kvik.engine.prefix import PrefixCache
from kvik.models import Model
from kvik.plan import pool_capacity
from kvik.recipe import Recipe

assert tracers.PerChannel.names  # importing them registered them

Make = Callable[[], Model]
_model = cache(lambda make: make())


def near(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


class Runner:
    """A model, a poisoned pool with room for ``sequences`` of 200 tokens, and a prefix cache."""

    def __init__(self, make: Make, recipe: str, *, sequences: int = 12, **options: Any) -> None:
        self.model: Model = _model(make)
        plan = Recipe.parse(recipe).resolve(self.model.spec)
        slab = max(plan.page_bytes, default=64) * 4
        capacity = pool_capacity(plan, 200, slab, sequences)
        self.pool = PagePool(plan.page_bytes, capacity, slab_bytes=slab, poison=True)
        self.cache = KVCache(plan, self.pool)
        self.prefix = PrefixCache(self.cache, b"tiny", **options)

    def feed(self, sequence: Sequence, tokens: list[int]) -> Tensor:
        """Logits [n, vocab] of a step."""
        self.cache.plan([sequence], [len(tokens)])
        try:
            ids = torch.tensor(tokens)
            out = self.model.forward(ids, self.cache.positions, self.cache)
        except BaseException:
            self.cache.abort()
            raise
        self.cache.commit()
        return out.double()

    def start(self, text: Text) -> tuple[int, Sequence]:
        """What is stored of a prompt, as an engine would use it."""
        hit = self.prefix.match(text, len(text) - 1)
        sequence = self.prefix.take(hit)
        self.prefix.note(hit)
        assert sequence.length == hit.length
        return hit.length, sequence

    def run(
        self, tokens: list[int], stops: Iterable[int] = (), **text: Any
    ) -> tuple[int, Tensor, Sequence]:
        """Hit length, logits of the rest, and the sequence; stores it at ``stops``."""
        known = self.prefix.text(tokens, **text)
        hit, sequence = self.start(known)
        parts = []
        for stop in sorted({*stops, len(tokens)}):
            if stop > sequence.length:
                parts.append(self.feed(sequence, tokens[sequence.length : stop]))
                if stop in set(stops):
                    self.prefix.insert(known, sequence)
        return hit, torch.cat(parts), sequence

    def check_books(self, *sequences: Sequence) -> None:
        """Every reference has an owner and every byte one place."""
        entries = list(self.prefix.entries())
        running = [s.state.pages() for s in sequences]
        listed = [e.pages for e in entries]
        pages = np.concatenate([np.empty(0, np.int32), *running, *listed])
        ids, counts = np.unique(pages, return_counts=True)
        assert self.pool.references(ids).tolist() == counts.tolist()
        sizes = {
            page: size
            for table in (*(s.state for s in sequences), *entries)
            for group, main, tail in zip(
                self.cache.resolved.groups, table.main, table.tail, strict=True
            )
            for size, part in (
                (group.main.nbytes, main.pages),
                *(((group.tail.nbytes, tail.pages),) if group.tail and tail else ()),
            )
            for page in part.tolist()
        }
        used = {page for part in running for page in part.tolist()}
        cached = {page for part in listed for page in part.tolist()} - used
        stats = self.pool.stats()
        assert stats.used == sum(sizes[page] for page in used)
        assert stats.cached == sum(sizes[page] for page in cached)
        assert stats.free + stats.used + stats.cached + stats.stranded == stats.total
        mine = self.prefix.stats()
        own = {page for part in listed for page in part.tolist()}
        assert (mine.entries, mine.pages) == (len(entries), len(own))
        states = sum(e.state_bytes for e in entries)
        assert mine.bytes == sum(sizes[page] for page in own) + states

    def close(self, *sequences: Sequence) -> None:
        """Frees all; the pool must be whole."""
        for sequence in sequences:
            self.cache.free(sequence)
        self.check_books()
        self.prefix.clear()
        self.check_books()
        assert self.pool.stats().free == self.pool.nbytes


@cache
def solo(make: Make, recipe: str, tokens: tuple[int, ...]) -> Tensor:
    """Logits of all tokens from a run alone, in one step."""
    runner = Runner(make, recipe, sequences=2)
    return runner.feed(runner.cache.create(), list(tokens))
