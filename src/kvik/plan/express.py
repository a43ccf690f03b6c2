"""What of a recipe another engine can say, and what it cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kvik.recipe import Codec, Pair, Positional, Recipe, Scope, Slot, Stage
from kvik.recipe.stage import Layout


@dataclass(frozen=True)
class Language:
    """What an engine has words for.

    ``exact`` names its cache type for codecs that it stores to the byte as kvik does, ``nearest``
    a close one for others. ``pairs``: K and V may differ. ``skips``: some layers may stay in 16
    bits. ``windows``: a window and sinks can be laid over the model. ``page``: pages of whole
    multiples of so many tokens; 0 where the engine alone decides. ``coded`` is the type for codecs
    whose own one cannot hold a model's rows.
    """

    exact: Mapping[str, str]
    nearest: Mapping[str, str]
    pairs: bool = False
    skips: bool = False
    windows: bool = False
    page: int = 0
    coded: str = ""

    def only(self, holds: Callable[[str], bool]) -> Language:
        """The language where only some types can hold a model's rows: ``coded`` for the others."""
        exact = {codec: name for codec, name in self.exact.items() if holds(name)}
        nearest = {c: name if holds(name) else self.coded for c, name in self.nearest.items()}
        return replace(self, exact=exact, nearest=nearest)


@dataclass(frozen=True)
class Expressed:
    """The engine's words: cache types of K and V, layers in 16 bits, window, sinks, page size.

    ``lost`` has every part of the recipe that is not among them, with the reason.
    """

    k: str
    v: str
    skipped: tuple[Scope, ...] = ()
    window: int | None = None
    sinks: int = 0
    page: int | None = None
    lost: tuple[str, ...] = ()


def express(recipe: Recipe, language: Language) -> Expressed:
    """``recipe`` in the words of an engine."""
    lost: list[str] = []
    codec: Codec | None = None
    skipped: list[Scope] = []
    kept: list[Positional] = []
    page: int | None = None
    for stage, scope in recipe.stages:
        where = f"{stage}@{scope}" if scope.ranges else str(stage)
        if isinstance(stage, Codec) and not scope.ranges:
            codec = stage
        elif isinstance(stage, Codec) and language.skips and str(stage) in ("fp16", "bf16"):
            skipped.append(scope)
        elif isinstance(stage, Positional) and language.windows and not scope.ranges:
            kept.append(stage)
        elif isinstance(stage, Layout) and not scope.ranges and _fits(stage, language):
            page = stage.tokens
        else:
            lost.append(f"{where}: {_reason(stage, scope, language)}")
    halves = (codec.k, codec.v) if isinstance(codec, Pair) else (codec, codec)
    k, v = (_type(half, language, lost) for half in halves)
    if k != v and not language.pairs:
        lost.append(f"{codec}: one type serves K and V, {k} is taken for both")
        v = k
    sinks = sum(stage.first for stage in kept)
    last = sum(stage.last for stage in kept)
    return Expressed(
        k, v, tuple(skipped), last + sinks or None, sinks, page, tuple(dict.fromkeys(lost))
    )


def _fits(stage: Layout, language: Language) -> bool:
    return language.page > 0 and stage.tokens % language.page == 0


def _reason(stage: Stage, scope: Scope, language: Language) -> str:
    if stage.slot == Slot.LAYOUT:
        if language.page:
            return f"pages hold multiples of {language.page} tokens"
        return "the engine decides how it allocates"
    if isinstance(stage, Codec):
        return "all layers have the same cache type"
    if scope.ranges:
        return "no option for some layers only"
    return "no option for it; every token the model sees stays"


def _type(codec: Codec | None, language: Language, lost: list[str]) -> str:
    text = "fp16" if codec is None else str(codec)
    if text in language.exact:
        return language.exact[text]
    name = text.partition(":")[0]
    near = language.nearest.get(name) or language.exact.get(name) or language.exact["fp16"]
    lost.append(f"{text}: no such cache type, the nearest is {near}")
    return near
