"""The work of a sweep: a unit, measured for every recipe that still lacks it.

A cell is one unit with one recipe. Its record says what was measured or why it could not be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from kvik.errors import KvikError
from kvik.evaluate.tasks import REFERENCE, Material, Subject, Task, Unit, find

Record = dict[str, Any]
# The dense cache once more, cut into steps of so many tokens: what remains is the noise floor.
REPEAT_CHUNK = 37


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know once.

    ``context``: tokens of the longest text. ``identity``: hex digest that its model must have.
    """

    model: str
    context: int
    identity: str
    text: str
    seed: int
    early: bool
    threads: int


@dataclass(frozen=True)
class Job:
    """A unit and what of it is to be measured; ``repeat`` asks for the noise floor."""

    unit: Unit
    recipes: tuple[str, ...]
    repeat: bool

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Job:
        """What :meth:`to_json` gave."""
        return cls(Unit(**data["unit"]), tuple(data["recipes"]), data["repeat"])

    def cells(self) -> list[tuple[str, bool]]:
        """(recipe, repeat) of every record to come."""
        return [(r, False) for r in self.recipes] + [(REFERENCE, True)] * self.repeat

    def parts(self) -> list[Job]:
        """A job for each cell, where a recipe needs no trace of the dense cache."""
        apart = [replace(self, recipes=(recipe,), repeat=False) for recipe in self.recipes]
        return apart + [replace(self, recipes=())] * self.repeat

    def without(self, done: Record) -> Job:
        """What is left once this record is there."""
        if done["repeat"]:
            return replace(self, repeat=False)
        return replace(self, recipes=tuple(r for r in self.recipes if r != done["recipe"]))


def record(unit: Unit, recipe: str, repeat: bool, **found: Any) -> Record:
    """A cell's record; ``found`` has ``values`` or an ``error``."""
    return {
        "task": unit.task,
        "unit": unit.key,
        "where": dict(unit.where),
        "recipe": recipe,
        "repeat": repeat,
        **found,
    }


class Bench:
    """A loaded model at work."""

    def __init__(self, setup: Setup) -> None:
        import torch

        from kvik.models import load_model

        torch.set_grad_enabled(False)
        model = load_model(setup.model, context=setup.context)
        if model.identity.hex() != setup.identity:
            raise KvikError(
                f"{setup.model} is another model here than where the sweep was started: copy the "
                "same files to every machine"
            )
        model.use_threads(setup.threads)
        material = Material(model.tokenizer, setup.text, setup.seed, setup.early)
        self._subject = Subject(model, material)

    def work(self, job: Job) -> Iterator[Record]:
        """The records of a job, each as soon as it is there.

        A recipe that fails fails alone; without the dense cache the whole job does.
        """
        yield from work(self._subject, job)  # a generator itself, as Ray wants it


def work(subject: Subject, job: Job) -> Iterator[Record]:
    """See :meth:`Bench.work`."""
    task, unit, trace = find(job.unit.task), job.unit, None
    others = [recipe for recipe in job.recipes if recipe != REFERENCE]
    if REFERENCE in job.recipes or task.needs_trace:
        dense, trace = _measured(partial(task.reference, subject, unit))
        if REFERENCE in job.recipes:
            yield record(unit, REFERENCE, False, **dense)
        if "error" in dense:
            reason = f"the dense cache cannot be measured: {dense['error']}"
            for recipe in others:
                yield record(unit, recipe, False, error=reason)
            if job.repeat:
                yield record(unit, REFERENCE, True, error=reason)
            return
    if job.repeat:
        again = replace(subject, chunk=REPEAT_CHUNK)
        found, _ = _measured(partial(_values, task, again, unit, REFERENCE, trace))
        yield record(unit, REFERENCE, True, **found)
    for recipe in others:
        found, _ = _measured(partial(_values, task, subject, unit, recipe, trace))
        yield record(unit, recipe, False, **found)


def _values(
    task: Task, subject: Subject, unit: Unit, recipe: str, trace: Any
) -> tuple[dict[str, Any], None]:
    return task.measure(subject, unit, recipe, trace), None


def _measured(measure: Callable[[], tuple[Any, Any]]) -> tuple[dict[str, Any], Any]:
    """Values and seconds, or an error that people can read; and the trace."""
    start = time.perf_counter()
    try:
        values, trace = measure()
    except (KvikError, MemoryError, ArithmeticError, RuntimeError, ValueError) as error:
        return {"error": f"{error}" or type(error).__name__}, None
    return {"values": values, "seconds": round(time.perf_counter() - start, 3)}, trace
