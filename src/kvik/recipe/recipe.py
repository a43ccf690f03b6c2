"""Recipe: a stack of stages, as text and as a Python object."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvik.errors import RecipeError
from kvik.recipe import grammar
from kvik.recipe.codec import Pair
from kvik.recipe.scope import Scope
from kvik.recipe.stage import Stage

if TYPE_CHECKING:
    from kvik.recipe.plan import Plan
    from kvik.spec.model import ModelSpec


@dataclass(frozen=True)
class Recipe:
    """Says how K and V are laid out, coded, thinned and placed.

    ``Recipe.parse("int8+sinks:4+window:2044") == Int(8) + Sinks(4) + Window(2044)``. The order of
    stages does not matter: they are kept in canonical order, and printed in it.
    """

    stages: tuple[tuple[Stage, Scope], ...]

    def __post_init__(self) -> None:
        if not self.stages:
            raise RecipeError("the recipe is empty; write a codec such as int8")
        ordered = sorted(((_simplest(s), scope) for s, scope in self.stages), key=_order)
        object.__setattr__(self, "stages", tuple(ordered))

    @classmethod
    def parse(cls, text: str | Recipe) -> Recipe:
        """Reads recipe text (a Recipe passes through); RecipeError names the column."""
        return text if isinstance(text, Recipe) else cls(tuple(grammar.parse(text)))

    @classmethod
    def of(cls, stage: Stage | Recipe, layers: str | Scope = "") -> Recipe:
        """One stage as a recipe, for some layers (``"0-1,-1"``) or all."""
        if isinstance(stage, Recipe):
            return stage
        try:
            scope = layers if isinstance(layers, Scope) else Scope.parse(layers) if layers else None
        except ValueError as error:
            raise RecipeError(str(error)) from None
        return cls(((stage, scope or Scope()),))

    def __add__(self, other: Stage | Recipe) -> Recipe:
        return Recipe(self.stages + Recipe.of(other).stages)

    def __radd__(self, other: Stage) -> Recipe:
        return Recipe.of(other) + self

    def __str__(self) -> str:
        return "+".join(grammar.format_placed(p) for p in self.stages)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over the canonical text and the content of calibration files."""
        hasher = hashlib.sha256(b"kvik recipe 1\0" + str(self).encode())
        for stage, _ in self.stages:
            content = stage.content()
            hasher.update(len(content).to_bytes(8, "little") + content)
        return hasher.hexdigest()

    def resolve(self, spec: ModelSpec) -> Plan:
        """One plan per layer of ``spec``, or RecipeError with every reason why not."""
        from kvik.recipe.resolve import resolve

        return resolve(self, spec)


def _simplest(stage: Stage) -> Stage:
    return stage.k if isinstance(stage, Pair) and stage.k == stage.v else stage


def _order(placed: tuple[Stage, Scope]) -> tuple[int, bool, str, str]:
    stage, scope = placed
    return (stage.slot, not scope.ranges, grammar.format_stage(stage), str(scope))
