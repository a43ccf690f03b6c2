"""What of a recipe another engine can say, and what it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvik.recipe import Codec, Pair, Recipe, Slot


@dataclass(frozen=True)
class Expressed:
    """An engine's cache types for K and V, and every part of the recipe that they leave out."""

    k: str
    v: str
    lost: tuple[str, ...] = ()


def express(
    recipe: Recipe, types: Mapping[str, str], nearest: Mapping[str, str], *, pairs: bool = False
) -> Expressed:
    """The types of an engine for ``recipe``.

    ``types`` names the engine's type for codecs that it has to the byte, ``nearest`` a close one
    for others; an engine without different types for K and V (``pairs``) gets K's for both.
    """
    lost: list[str] = []
    codec: Codec | None = None
    for stage, scope in recipe.stages:
        if stage.slot == Slot.LAYOUT:
            lost.append(f"{stage}: pages are laid out by the engine")
        elif not isinstance(stage, Codec) or scope.ranges:
            where = f"@{scope}" if scope.ranges else ""
            lost.append(f"{stage}{where} cannot be said")
        else:
            codec = stage
    k, v = (codec.k, codec.v) if isinstance(codec, Pair) else (codec, codec)
    found = [_one(half, types, nearest, lost) for half in (k, v)]
    if found[0] != found[1] and not pairs:
        lost.append(f"{codec}: one type serves K and V; {found[0]} is taken for both")
        found[1] = found[0]
    return Expressed(found[0], found[1], tuple(dict.fromkeys(lost)))


def _one(
    codec: Codec | None, types: Mapping[str, str], nearest: Mapping[str, str], lost: list[str]
) -> str:
    text = "fp16" if codec is None else str(codec)
    if text in types:
        return types[text]
    name = text.partition(":")[0]
    close = nearest.get(name) or types.get(name) or types["fp16"]
    lost.append(f"{text} is not stored as kvik does; the nearest is {close}")
    return close
