"""kvik through its public Python interface, one greedy token at a time, its own work included."""

from __future__ import annotations

import time
from typing import Any

import torch
from wire import serve

from kvik import __version__
from kvik.bench.decode_bytes import held_bytes, weight_bytes
from kvik.bench.decode_cache import Batch, Load
from kvik.models import Model, load_model
from kvik.recipe import Recipe


class Kvik:
    """One model under one recipe."""

    def __init__(self) -> None:
        self.model: Model | None = None
        self.batch: Batch | None = None

    def open(self, *, model: str, kv: str, threads: int, **_: Any) -> dict[str, Any]:
        """``kv``: a recipe."""
        self.model, self.recipe = load_model(model), Recipe.parse(kv)
        torch.set_num_threads(threads)
        return {"system": "kvik", "version": __version__, "held_bytes": held_bytes(self.model)}

    def _new(self, tokens: int, sequences: int) -> Batch:
        assert self.model is not None
        # Room for the steps that follow; a pool's memory is touched only as it fills.
        return Batch(self.model, self.recipe, Load(tokens, sequences, 256))

    def fill(self, tokens: int, sequences: int) -> dict[str, Any]:
        """Random K and V; also what the allocator holds for them, and the weights' bytes."""
        start = time.perf_counter()
        self.batch = self._new(tokens, sequences)
        self.batch.fill()
        assert self.model is not None
        return {
            "seconds": time.perf_counter() - start,
            "kv_bytes": self.batch.kv_bytes,
            "weight_bytes": weight_bytes(self.model),
        }

    def step(self) -> None:
        """One token for every sequence."""
        assert self.batch is not None
        self.batch.step()

    def rewind(self) -> None:
        """Back to the filled length, where the recipe can; else the text goes on."""
        assert self.batch is not None
        cache, length = self.batch.cache, self.batch.load.context
        for sequence in self.batch.sequences:
            if cache.can_cut(sequence, length):
                cache.cut(sequence, length)

    def prefill(self, tokens: int, sequences: int) -> float:
        """The prompts from nothing, in the usual chunks."""
        batch = self._new(tokens, sequences)
        seconds, _ = batch.prompt()
        batch.free()
        return seconds

    def attend(self, steps: int) -> dict[str, Any]:
        """Seconds of the attention of each of so many steps, without the rest of the model."""
        assert self.batch is not None
        draw = torch.Generator().manual_seed(1)
        return {"seconds": [self.batch.attend(draw) for _ in range(steps)]}


if __name__ == "__main__":
    kvik = Kvik()
    serve(kvik, attend=kvik.attend)
