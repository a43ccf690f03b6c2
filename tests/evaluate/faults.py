"""A cache with a planted fault, for the tasks to see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvik.recipe import Codec, Plane
from kvik.recipe.stage import REGISTRY, arg


@contextmanager
def planted() -> Iterator[None]:
    """Recipes may say ``lossy:every=8`` inside, and nobody finds the stage afterwards."""

    @dataclass(frozen=True)
    class Lossy(Codec):
        """float32, but one token in ``every`` is zero, others for each KV head: by its digits."""

        names: ClassVar = {"lossy": {}}

        every: int = arg(8, minimum=1)

        def planes(self, dim: int) -> Mapping[str, Plane]:
            return {"x": Plane("float32", (dim,))}

        def encode(self, x: Tensor) -> dict[str, Tensor]:
            digits = (x.abs().sum(-1, keepdim=True) * 1e5).long()
            return {"x": x.float().masked_fill(digits % self.every == 0, 0.0)}

        def decode(self, planes: Mapping[str, Tensor]) -> Tensor:
            return planes["x"]

    try:
        yield
    finally:
        del REGISTRY["lossy"]
