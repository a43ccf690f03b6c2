"""Where a model's weights lie in a file, and what shapes its description gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kvik.models.decoder import Decoder
from kvik.spec import ModelSpec

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """The rows from ``start`` on of a tensor of ``shape``.

    Rows are counted over all dimensions but the last: a projection may be a part of a fused one,
    an expert a part of a tensor that holds all of them.
    """

    tensor: str
    shape: Shape
    start: int = 0


def expected_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """The name and shape of every weight that ``spec`` calls for."""
    shapes: dict[str, Shape] = {}

    def take(name: str, shape: Shape) -> Tensor:
        shapes[name] = shape
        return torch.empty(shape, device="meta")

    Decoder.build(take, spec)
    return shapes


def fused(tensor: str, name: str, parts: Iterable[str], shapes: Mapping[str, Shape]) -> Place:
    """The place of ``name`` in a tensor that holds ``parts`` one below the other."""
    start = rows = 0
    for part in parts:
        if part == name:
            start = rows
        rows += shapes[part][0]
    return Place(tensor, (rows, *shapes[name][1:]), start)


def merged(tensor: str, number: int, count: int, shape: Shape) -> Place:
    """The place of expert ``number`` in a tensor of ``count`` experts, each of ``shape``."""
    return Place(tensor, (count, *shape), number * shape[0])
