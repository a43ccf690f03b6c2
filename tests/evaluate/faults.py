"""A cache with a planted fault, for the tasks to see."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvik.cache.pageio import write_pages
from kvik.engine.session import Session
from kvik.evaluate.tasks import REFERENCE, Subject

PAGE = 16
FAULTY = f"fp32+page:{PAGE}"


class LosesPages(Session):
    """After every step, every ``every``-th full page is all zeros, as if it had been lost."""

    every = 4

    def _step(self, tokens: Seq[int], rows: Tensor | None) -> Tensor:
        out = super()._step(tokens, rows)
        for group, table in zip(self.plan.groups, self._sequence.state.main, strict=True):
            full = len(self.tokens) // PAGE
            lost = np.asarray(table.pages[:full][self.every - 1 :: self.every])
            size = group.main.nbytes
            zeros = torch.zeros((lost.size, size), dtype=torch.uint8)
            write_pages(self.cache.pool, size, lost, zeros)
        return out


@dataclass(frozen=True)
class Faulty(Subject):
    """The dense cache is whole; ``FAULTY`` loses pages."""

    every: int = 4

    def session(self, recipe: str, tokens: int, forks: int = 1) -> Session:
        if recipe == REFERENCE:
            return super().session(recipe, tokens, forks)
        found = LosesPages(self.model, recipe, max_tokens=tokens, max_forks=forks)
        found.every = self.every
        return found
