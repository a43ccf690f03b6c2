"""Language models: where they come from, their weights, their tokenizer, their forward pass."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvik.models.model import Model, load_model
    from kvik.models.random import random_model

__all__ = ["Model", "load_model", "random_model"]

_HOMES = {"Model": "model", "load_model": "model", "random_model": "random"}


def __getattr__(name: str) -> object:
    # kvik.models.sources lists and fetches models; it should not wait for torch.
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
