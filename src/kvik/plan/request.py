"""One question to the planner, checked, and everything that answers it."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from functools import cached_property

from kvik.errors import KvikError, RecipeError
from kvik.plan.data import FAR, LayerData, layer_data, resolve
from kvik.plan.engines import ENGINES, CacheType, Engine, Setting
from kvik.plan.ranks import Parallel, ranks
from kvik.plan.typed import typed_data
from kvik.recipe import Plan, Recipe
from kvik.recipe.stage import load_stages
from kvik.spec.model import ModelSpec

MOST_MEMORY = 1 << 60


@dataclass(frozen=True)
class Request:
    """A model, a recipe (or a cache type of the engine), a load and devices.

    ``kv`` is looked up among the engine's own types first where no stage has that name.
    """

    spec: ModelSpec
    kv: str
    context: int
    batch: int = 1
    engine: str = "kvik"
    parallel: Parallel = field(default_factory=Parallel)
    inflight: int | None = None
    memory: int | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.context < FAR:
            raise KvikError(f"a context of {self.context} tokens cannot be planned: 1 to {FAR - 1}")
        if self.engine not in ENGINES:
            near = difflib.get_close_matches(self.engine, ENGINES, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(ENGINES)}"
            raise KvikError(f"no engine {self.engine!r}: {hint}")

    @cached_property
    def native(self) -> CacheType | None:
        """The engine's own type that ``kv`` names; None for a recipe."""
        if self.kv in load_stages():
            return None
        return ENGINES[self.engine].types.get(self.kv)

    @cached_property
    def recipe(self) -> Recipe | None:
        """The recipe; None where ``kv`` names a type of the engine."""
        if self.native is not None:
            return None
        try:
            return Recipe.parse(self.kv)
        except RecipeError as error:
            if why := self._unknown():
                raise RecipeError(why) from None
            raise error

    def _unknown(self) -> str:
        """What to say of a word that is neither a recipe nor a type of the engine, if it is one."""
        engine = ENGINES[self.engine]
        owners = [name for name, other in ENGINES.items() if self.kv in other.types]
        if owners:
            return (
                f"{self.kv} is a cache type of {' and '.join(owners)}: write --engine {owners[0]}"
            )
        for other in ENGINES.values():
            if self.kv in other.unsized:
                return (
                    f"{other.title} has the cache type {self.kv}, but the size of its rows is not "
                    f"known: plan with another of its types ({', '.join(other.types)})"
                )
        if not engine.types or not re.fullmatch(r"\w{1,40}", self.kv):
            return ""
        known = [*engine.types, *load_stages()]
        near = difflib.get_close_matches(self.kv.casefold(), known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}? Known" if near else "known"
        return (
            f"{self.kv!r} is neither a recipe nor a cache type of {engine.title}; {hint}: "
            f"{', '.join(dict.fromkeys(known))}"
        )

    @cached_property
    def plan(self) -> Plan | None:
        """The recipe on the whole model."""
        return None if self.recipe is None else resolve(self.recipe, self.spec)

    @cached_property
    def layers(self) -> list[LayerData]:
        """Pure data of every layer of one sequence."""
        if self.plan is not None:
            return layer_data(self.plan, self.spec, self.context)
        return typed_data(self.engine_rules.kind, self.spec, self.context)

    @cached_property
    def engine_rules(self) -> Engine:
        """The engine, set up for the devices."""
        ENGINES[self.engine].check(self.spec, self.parallel)
        setting = Setting(
            ranks(self.spec, self.recipe, self.parallel),
            self.recipe,
            self.kv,
            self.parallel,
            self.inflight,
            self.memory,
            self.device,
        )
        return ENGINES[self.engine](setting)
