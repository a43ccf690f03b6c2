"""Ways through ``inspect.json``: what pictures, sentences and tables all need of it.

A :data:`Figure` takes a layer to one number, one for each head, or None where it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Layer = Mapping[str, Any]
Document = Mapping[str, Any]
Figure = Callable[[Layer], Sequence[float] | float | None]

BUDGET = "0.2"


def mean(values: Sequence[float]) -> float:
    """Mean of at least one number."""
    return sum(values) / len(values)


def with_part(document: Document, part: str) -> list[Layer]:
    """The layers that have that part."""
    return [layer for layer in document["layers"] if layer[part]]


def by_layer(layers: Sequence[Layer], figure: Figure) -> list[tuple[int, float]]:
    """(layer, mean over its heads) wherever ``figure`` has something."""
    found = []
    for layer in layers:
        values = figure(layer)
        if isinstance(values, float | int):
            found.append((layer["layer"], float(values)))
        elif values:
            found.append((layer["layer"], mean(values)))
    return found


def at(*path: str) -> Figure:
    """The figure at that path of keys; None where a part of it is missing."""

    def figure(layer: Layer) -> Sequence[float] | float | None:
        found: Any = layer
        for key in path:
            found = found.get(key) if found else None
        return found or None

    return figure


def sink(count: int = 4) -> Figure:
    """Share of attention on the first ``count`` tokens; None where none of them is seen."""
    return at("attention", "sink", str(count))


def needed(share: str, which: str = "p50") -> Figure:
    """Tokens that hold ``share`` of a query's attention."""
    return at("attention", "needed", share, which)


def kept(rule: str, part: str = "beyond_sinks") -> Figure:
    """What a rule keeps of the later attention, with a fifth of the tokens."""
    return at("chosen", part, rule, BUDGET)


def of_stream(stream: str, *path: str) -> Figure:
    """A figure of ``k``, ``k_rope`` or ``v``."""
    return at("stored", "streams", stream, *path)


def rank_share(stream: str) -> Figure:
    """Directions that hold 99 % of the energy, as a share of all."""

    def figure(layer: Layer) -> float | None:
        stored = layer["stored"]
        if not stored or stream not in stored["rank"]:
            return None
        return float(stored["rank"][stream] / stored["width"][stream])

    return figure


def heads(layer: Layer, figure: Figure) -> list[float]:
    """What a figure says of each head of a layer that has it."""
    values = figure(layer)
    assert values is not None
    assert not isinstance(values, float | int)
    return list(values)


def windows_of(document: Document) -> list[str]:
    """All windows that were looked at, from the narrowest."""
    return [*with_part(document, "attention")[0]["attention"]["window"]]


def window_of(document: Document) -> str:
    """The widest of them that is at most a quarter of the text."""
    most = max(16, document["context"] // 4)
    return str(max(int(w) for w in windows_of(document) if int(w) <= most))
