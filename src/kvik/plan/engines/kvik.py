"""kvik itself: exactly the bytes that its pool, tables and states take."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

from kvik.errors import KvikError
from kvik.plan.bytes import kv_bytes
from kvik.plan.data import resolve, side_bytes
from kvik.plan.engines.base import GIB, Engine
from kvik.plan.express import Expressed
from kvik.plan.ranks import Rank
from kvik.recipe import Plan


class Kvik(Engine):
    """Pages of the recipe's size, tables of 8 bytes a page, states."""

    name = "kvik"
    title = "kvik"
    inflight_words = "changes the activations only"
    rule: ClassVar[str] = (
        "pages of the recipe's size (32 tokens unless said) for every group of layers that keep "
        "the same tokens, 8 bytes of table a page, states as they are"
    )
    fit_rule: ClassVar[str] = "all memory less 0.5 GiB, less weights and activations"

    @cached_property
    def _plans(self) -> dict[int, Plan]:
        found = {}
        for rank in self.setting.ranks:
            if rank.recipe is None:
                raise KvikError(f"{self.setting.kv!r} is another engine's type: name its --engine")
            found[rank.start] = resolve(rank.recipe, rank.spec)
        return found

    @cached_property
    def expressed(self) -> Expressed:
        """A recipe is kvik's own language."""
        return Expressed(self.setting.kv, self.setting.kv)

    @property
    def notes(self) -> list[str]:
        """Kinds of layers that can be planned and not be run."""
        layers = [layer for rank in self.setting.ranks for layer in rank.spec.layers]
        found = {
            "chunked": any(layer.kind == "chunked" for layer in layers),
            "recurrent": any(layer.states for layer in layers),
            "indexed or compressed": any(layer.extra for layer in layers),
        }
        kinds = [kind for kind, there in found.items() if there]
        sides = (
            "; rows of side streams are counted without pages"
            if found["indexed or compressed"]
            else ""
        )
        notes = [
            f"kvik does not run {kind} layers yet: this is what its layout would take{sides}"
            for kind in [" and ".join(kinds)] * bool(kinds)
        ]
        if max(self.setting.parallel.tp, self.setting.parallel.pp, self.setting.parallel.cp) > 1:
            notes.append("kvik plans several devices and runs on one")
        return notes + self._device_notes()

    def rank_bytes(self, rank: Rank, context: int) -> int:
        """As the allocator does it."""
        plan = self._plans[rank.start]
        share = -(-context // self.setting.parallel.cp)
        sides = sum(side_bytes(lp, share) for lp in plan.layers if lp is not None)
        return kv_bytes(plan, share).total + sides

    def budget(self, memory: int, weights: int, activations: int) -> int:
        """Half a GiB stays for Python and torch."""
        return memory - GIB // 2 - weights - activations
