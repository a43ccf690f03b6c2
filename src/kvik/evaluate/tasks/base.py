"""What a task is: units that are measured once for every recipe, and the dense cache first.

A unit's numbers depend on the model, the text, the seed and the unit alone, never on which other
units or recipes are measured: a sweep may be cut anywhere, spread over machines and resumed.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

from kvik.errors import KvikError
from kvik.evaluate.tasks.spelling import Spelling

if TYPE_CHECKING:
    from kvik.engine.session import Session
    from kvik.models import Model
    from kvik.models.tokenizer import Tokenizer

REFERENCE = "fp32"
CHUNK = 512
Values = dict[str, Any]


@dataclass(frozen=True)
class Unit:
    """One thing to measure; ``where`` holds plain values that say all there is to know of it."""

    task: str
    where: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Tells units apart in a file of results."""
        text = json.dumps([self.task, dict(self.where)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Ask:
    """What a user wants of a task; None leaves it to the task.

    ``contexts`` are in tokens, ``depths`` shares of the context, ``samples`` texts for each cell.
    """

    contexts: Sequence[int] | None = None
    samples: int | None = None
    depths: Sequence[float] | None = None
    scored: int | None = None


@dataclass(frozen=True)
class Material:
    """What units are made from: the model's tokenizer, the text and the seed.

    ``early`` states a question before the context too, so that a policy which looks at the
    question can use it; otherwise a context is compressed before its question is seen.
    """

    tokenizer: Tokenizer
    text: str
    seed: int = 0
    early: bool = False

    @cached_property
    def ids(self) -> list[int]:
        """The text's tokens, without the one that begins a text."""
        return self.tokenizer.encode(self.text, bos=False, special=False)

    @cached_property
    def head(self) -> list[int]:
        """The token that begins a text, where the model has one."""
        return self.tokenizer.encode("", bos=True, special=False)

    @cached_property
    def spelling(self) -> Spelling:
        """How questions are put to this model."""
        return Spelling(self.tokenizer, early=self.early)

    def draw(self, unit: Unit) -> Random:
        """Random numbers that belong to the unit."""
        return Random(f"{self.seed} {unit.key}")

    def excerpt(self, length: int, sample: int) -> list[int]:
        """``length`` tokens of the text; samples spread over it evenly, however many there are."""
        if length > len(self.ids):
            raise KvikError(
                f"the text has {len(self.ids):,} tokens, {length:,} are needed: give a longer "
                "--text or a smaller --context"
            )
        start = int(halving(sample) * (len(self.ids) - length))
        return self.ids[start : start + length]


def halving(index: int) -> float:
    """0, 1/2, 1/4, 3/4, 1/8, ...: the van der Corput sequence."""
    value, step = 0.0, 0.5
    while index:
        value += step * (index & 1)
        index, step = index >> 1, step / 2
    return value


@dataclass(frozen=True)
class Subject:
    """A loaded model and the material. ``chunk``: tokens of a step, which change no result."""

    model: Model
    material: Material
    chunk: int = CHUNK

    def session(self, recipe: str, tokens: int, forks: int = 1) -> Session:
        """A cache for ``tokens`` tokens and so many forks that live beside it."""
        from kvik.engine.session import Session

        return Session(self.model, recipe, max_tokens=tokens, max_forks=forks)


class Task(ABC):
    """One way to look at a cache. Subclasses with a ``name`` are found by it."""

    name: ClassVar[str] = ""
    meaning: ClassVar[str] = ""
    contexts: ClassVar[tuple[int, ...]] = (2048,)
    samples: ClassVar[int] = 1
    kind: ClassVar[str] = ""  # which summary reads its values: "stream" or "recall"
    needs_trace: ClassVar[bool] = False
    uses: ClassVar[frozenset[str]] = frozenset()  # "depths", "scored": what else it may be asked
    registry: ClassVar[dict[str, Task]] = {}

    def __init_subclass__(cls) -> None:
        if cls.__dict__.get("name"):
            Task.registry[cls.name] = cls()

    def units(self, ask: Ask) -> Iterator[Unit]:
        """All that is to be measured, short contexts first."""
        for context in sorted(set(ask.contexts or self.contexts)):
            for sample in range(ask.samples or self.samples):
                where = {"context": context, "sample": sample} | self.options(ask)
                yield Unit(self.name, where)

    def options(self, ask: Ask) -> dict[str, Any]:
        """What else is the same for all units."""
        return {}

    @abstractmethod
    def tokens(self, unit: Unit) -> int:
        """The most tokens that a cache holds."""

    @abstractmethod
    def check(self, material: Material, unit: Unit) -> None:
        """KvikError when the unit cannot be made: the text or the context is too short."""

    @abstractmethod
    def sound(self, where: Mapping[str, Any], values: Mapping[str, Any], recipe: str) -> bool:
        """Whether values read from a file are whole; they are plain JSON without NaN."""

    def alike(self, values: Mapping[str, Any]) -> Any:
        """What sound values have to have in common for every recipe of a unit."""
        return None

    @abstractmethod
    def reference(self, subject: Subject, unit: Unit) -> tuple[Values, Any]:
        """The dense cache's values, and a trace of it that :meth:`measure` may need."""

    @abstractmethod
    def measure(self, subject: Subject, unit: Unit, recipe: str, trace: Any) -> Values:
        """The values of a recipe; ``trace`` is None where ``needs_trace`` is not set."""


def numbers(found: Any, count: int | None = None) -> bool:
    """Whether ``found`` is a list of numbers, ``count`` of them."""
    whole = isinstance(found, list) and (count is None or len(found) == count)
    return whole and all(isinstance(x, int | float) for x in found)


def find(name: str) -> Task:
    """The task of that name; KvikError lists those there are."""
    if name not in Task.registry:
        known = ", ".join(Task.registry)
        raise KvikError(f"there is no task {name!r}: take one of {known}")
    return Task.registry[name]
