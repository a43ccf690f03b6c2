"""Stages: the words of a recipe. A subclass registers itself under its recipe names."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

from kvik.errors import RecipeError

if TYPE_CHECKING:
    from kvik.recipe.recipe import Recipe
    from kvik.recipe.scope import Scope
    from kvik.spec.model import LayerSpec


class Slot(IntEnum):
    """What a stage decides; also the order in which a recipe is printed."""

    TRANSFORM = 0
    CODEC = 1
    RETENTION = 2
    BUDGET = 3
    READS = 4
    LAYOUT = 5
    PLACEMENT = 6


def arg(default: Any = dataclasses.MISSING, *, positional: bool = False, **rules: Any) -> Any:
    """A recipe argument: a dataclass field with parsing rules.

    ``positional`` arguments may be written without their name. ``choices`` lists the allowed
    words, ``minimum`` and ``maximum`` bound numbers.
    """
    return field(default=default, metadata={"positional": positional, **rules})


@dataclass(frozen=True)
class Stage:
    """One technique with its parameters and nothing else: state lives in the cache.

    ``names`` maps each recipe name of the class to the fields that the name fixes; ``examples``
    are recipes with it that the conformance suite runs.
    """

    slot: ClassVar[Slot]
    names: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    examples: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in cls.__dict__.get("names", {}):
            other = REGISTRY.setdefault(name, cls)
            if _origin(other) != _origin(cls):
                raise RecipeError(
                    f"two stages are called {name!r}: {_origin(other)} and {_origin(cls)}; "
                    "uninstall one of the packages"
                )
            REGISTRY[name] = cls

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            try:
                check_value(f, getattr(self, f.name))
            except ValueError as error:
                raise RecipeError(f"{type(self).__name__}: {f.name}: {error}") from None

    @property
    def name(self) -> str:
        """The recipe name that fixes exactly the fields this object has."""
        for name, fixed in self.names.items():
            if all(getattr(self, key) == value for key, value in fixed.items()):
                return name
        raise RecipeError(f"{self!r} has no recipe name; names are {', '.join(self.names)}")

    @property
    def fixed(self) -> Mapping[str, Any]:
        """Fields that the name already says."""
        return self.names[self.name]

    def check(self, layer: LayerSpec) -> list[str]:
        """Reasons why this stage cannot work on a layer; empty when it can."""
        return []

    def content(self) -> bytes:
        """What besides the parameters decides the result (calibration); part of the digest."""
        return b""

    def __str__(self) -> str:
        from kvik.recipe.grammar import format_stage

        return format_stage(self)

    def __add__(self, other: Stage | Recipe) -> Recipe:
        from kvik.recipe.recipe import Recipe

        return Recipe.of(self) + other

    def __matmul__(self, layers: str | Scope) -> Recipe:
        from kvik.recipe.recipe import Recipe

        return Recipe.of(self, layers=layers)


REGISTRY: dict[str, type[Stage]] = {}
WORD = re.compile(r"[A-Za-z0-9_.%-]+\Z", re.ASCII)
LIMIT = 10**9


def _origin(cls: type[Stage]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def check_value(f: dataclasses.Field[Any], value: Any) -> None:
    """ValueError when an argument breaks its rules, or could not be written in a recipe."""
    rules = f.metadata
    choices = rules.get("choices")
    if choices and value not in choices:
        raise ValueError(f"one of {', '.join(map(str, choices))}, not {value!r}")
    if isinstance(value, str) and not WORD.match(value):
        raise ValueError(f"{value!r} is no word")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if "minimum" in rules and value < rules["minimum"]:
            raise ValueError(f"must be at least {rules['minimum']}, not {value}")
        if "maximum" in rules and value > rules["maximum"]:
            raise ValueError(f"must be at most {rules['maximum']}, not {value}")
        if not -LIMIT < value < LIMIT or round(value, 9) != value:
            raise ValueError(f"{value} has more than 9 digits before or behind the point")


@dataclass(frozen=True)
class Layout(Stage):
    """Decides how many ``tokens`` a page holds."""

    slot: ClassVar[Slot] = Slot.LAYOUT

    tokens: int = arg(32, positional=True, minimum=1, maximum=4096)


def named(name: str) -> Stage:
    """The stage that a bare recipe name stands for."""
    cls = load_stages()[name]
    return cls(**cls.names[name])


def load_stages() -> dict[str, type[Stage]]:
    """The registry with kvik's own stages and those of installed plug-ins."""
    import importlib

    importlib.import_module("kvik.stages")
    return REGISTRY
