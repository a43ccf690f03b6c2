"""Bytes of weights that a step reads: each array of the decoder once, as it lies in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from torch import Tensor

from kvik.models import Model


def weight_bytes(model: Model) -> int:
    """Bytes that a decode step reads of the model.

    An embedding table that is not the output matrix too is left out: of it a step reads a row.
    """
    spared: set[int] = set() if model.spec.tied else set(_arrays(model.decoder.embed))
    return sum(n for at, n in _arrays(model.decoder).items() if at not in spared)


def held_bytes(model: Model) -> int:
    """Bytes of all the model's weights in memory."""
    return sum(_arrays(model.decoder).values())


def _arrays(root: Any) -> dict[int, int]:
    """Address and bytes of every distinct array below an object, whatever holds it."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    stack = [root]
    while stack:
        one = stack.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            if one.numel():
                found[one.data_ptr()] = max(found.get(one.data_ptr(), 0), one.nbytes)
        elif isinstance(one, np.ndarray):
            found[one.ctypes.data] = max(found.get(one.ctypes.data, 0), one.nbytes)
        elif is_dataclass(one) and not isinstance(one, type):
            stack += [getattr(one, field.name) for field in fields(one)]
        elif isinstance(one, Mapping):
            stack += one.values()
        elif isinstance(one, Iterable) and not isinstance(one, str | bytes):
            stack += one
    return found
