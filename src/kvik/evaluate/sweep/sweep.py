"""A sweep from what a user asks to what ``eval.json`` holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvik import machine
from kvik.errors import CapacityError, KvikError
from kvik.evaluate.compare import check_memory, resolved
from kvik.evaluate.outcome.summary import summarize
from kvik.evaluate.provenance import environment, shown_name, text_sha256
from kvik.evaluate.sweep.cells import Job, Record, Setup
from kvik.evaluate.sweep.store import SCHEMA, Store
from kvik.evaluate.tasks import REFERENCE, Ask, Material, Task, Unit, find
from kvik.evaluate.text import chosen_text
from kvik.models.sources import Progress as Fetching

if TYPE_CHECKING:
    from kvik.spec import ModelSpec

Work = Callable[[Sequence[Job]], Iterator[Record]]


@dataclass(frozen=True)
class Question:
    """What a user asks. ``workers`` None: one for each core that memory allows."""

    model: str
    recipes: Sequence[str]
    tasks: Sequence[str]
    ask: Ask
    text: str | None = None
    seed: int = 0
    early: bool = False
    workers: int | None = None
    ray: str | None = None  # an address, or "here"


@dataclass(frozen=True)
class Prepared:
    """Everything that is checked and made before the first cell is measured."""

    question: Question
    recipes: tuple[str, ...]
    units: tuple[Unit, ...]
    setup: Setup
    workers: int
    header: dict[str, Any]
    warnings: tuple[str, ...]

    def jobs(self, store: Store) -> list[Job]:
        """What is still to do, the longest first so that all workers end together."""
        every = tuple(dict.fromkeys((REFERENCE, *self.recipes)))
        jobs, firsts = list[Job](), _firsts(self.units)
        for unit in self.units:
            recipes = tuple(r for r in every if (unit.key, r, False) not in store.done)
            repeat = unit in firsts and (unit.key, REFERENCE, True) not in store.done
            job = Job(unit, recipes, repeat)
            if not find(unit.task).needs_trace:
                jobs += job.parts()
            elif job.cells():
                jobs.append(job)
        return sorted(jobs, key=lambda job: -find(job.unit.task).tokens(job.unit))


def _firsts(units: Sequence[Unit]) -> list[Unit]:
    """The unit of each task that is repeated for the noise floor."""
    return list({unit.task: unit for unit in reversed(units)}.values())


Workforce = Callable[[Prepared], AbstractContextManager[Work]]


def prepare(question: Question, fetching: Fetching | None = None) -> Prepared:
    """Check all there is to check; KvikError before anything runs."""
    from kvik.models import load_model, sources
    from kvik.spec import load_spec

    tasks = [find(name) for name in dict.fromkeys(question.tasks)]
    _check_ask(question.ask, tasks)
    name, text = chosen_text(question.text)
    if sources.local(question.model) is None:
        resolved(question.recipes, None)
    path = sources.resolve(question.model, fetching)
    spec = load_spec(path)
    recipes = resolved(question.recipes, spec)
    units = tuple(unit for task in tasks for unit in task.units(question.ask))
    longest = max(find(unit.task).tokens(unit) for unit in units)
    model = load_model(question.model, context=longest)
    material = Material(model.tokenizer, text, question.seed, question.early)
    _check_units(material, units)
    check_memory(recipes, spec, longest)
    workers, threads = _share(question, spec, units, path)
    identity = model.identity.hex()
    header = {
        "schema": SCHEMA,
        "model": shown_name(question.model),
        "model_identity": identity,
        "text": name,
        "text_sha256": text_sha256(text),
        "tokens_sha256": text_sha256(" ".join(map(str, material.ids))),
        "seed": question.seed,
        "early": question.early,
        "template": material.spelling.template,
        "env": environment(threads) | {"workers": workers},
    }
    warnings = []
    if longest > spec.context:
        warnings.append(
            f"{longest:,} tokens are beyond the {spec.context:,} that {question.model} was "
            "trained on"
        )
    most = max(unit.where["sample"] for unit in units) + 1
    if most > 1 and most * longest > len(material.ids):
        warnings.append(
            f"{most} samples of up to {longest:,} tokens overlap in a text of "
            f"{len(material.ids):,}: intervals are too narrow; give a longer --text"
        )
    setup = Setup(question.model, longest, identity, text, question.seed, question.early, threads)
    return Prepared(question, recipes, units, setup, workers, header, tuple(warnings))


def _check_units(material: Material, units: Sequence[Unit]) -> None:
    """KvikError that lists every task and context that cannot be made."""
    reasons = dict[str, None]()
    for unit in units:
        try:
            find(unit.task).check(material, unit)
        except KvikError as error:
            reasons[f"{unit.task} at a context of {unit.where['context']:,}: {error}"] = None
    if reasons:
        raise KvikError("; ".join(reasons))


def _check_ask(ask: Ask, tasks: Sequence[Task]) -> None:
    for option, field, given in (
        ("--depth", "depths", ask.depths),
        ("--scored", "scored", ask.scored),
    ):
        able = [task.name for task in Task.registry.values() if field in task.uses]
        if given is not None and not any(task.name in able for task in tasks):
            raise KvikError(f"{option} is for {', '.join(able)} and changes none of these tasks")
    if any(not 0 <= depth <= 1 for depth in ask.depths or ()):
        raise KvikError("a depth is a share of the context: give it between 0 and 1")


def _share(
    question: Question, spec: ModelSpec, units: Sequence[Unit], path: Path
) -> tuple[int, int]:
    """(workers, threads of each); CapacityError when not even one fits beside its logits."""
    from kvik.models.identity import weight_files

    # The dense cache leaves float32 logits of every scored token.
    traces = [int(unit.where.get("scored", 0)) * spec.vocab * 4 for unit in units]
    each = max(traces) + 2 * sum(file.size for file in weight_files(path))
    have = machine.available_memory()
    if each > have:
        raise CapacityError(
            f"a worker needs {machine.human_bytes(each)} for the model and the dense cache's "
            f"logits, {machine.human_bytes(have)} are available: score fewer tokens (--scored)"
        )
    cores = machine.granted_threads()
    fit = max(1, min(cores, int(have // each)))
    workers = question.workers or fit
    return workers, max(1, cores // workers)


def run(
    prepared: Prepared,
    store: Store,
    heard: Callable[[Record], None],
    workers: Workforce | None = None,
) -> dict[str, Any]:
    """Measure what ``store`` lacks; returns what ``eval.json`` holds.

    ``heard`` gets every record, as it comes. Cells that fail are listed; the others go on. Who
    works is the question's ``workers`` and ``ray``, or whatever ``workers`` yields.
    """
    jobs = prepared.jobs(store)
    if jobs:
        with (workers or hired)(prepared) as records:
            for record in records(jobs):
                store.add(record)
                heard(record)
    return document(prepared, store)


@contextmanager
def hired(prepared: Prepared) -> Iterator[Work]:
    """Processes of this machine or actors of a cluster."""
    question = prepared.question
    if question.ray is None:
        from kvik.evaluate.sweep.local import Workers

        with Workers(prepared.setup, prepared.workers) as workers:
            yield workers.run
    else:
        from kvik.evaluate.sweep.cluster import Cluster

        address = None if question.ray == "here" else question.ray
        with Cluster(prepared.setup, address, question.workers) as cluster:
            yield cluster.run


def document(prepared: Prepared, store: Store) -> dict[str, Any]:
    """Header, rows and what failed, whatever the order in which the cells were measured."""
    wanted = {unit.key for unit in prepared.units}
    recipes = set(prepared.recipes) | {REFERENCE}
    # A folder to which a shorter context was added has the repetition of its first one too.
    repeated = {unit.key for unit in _firsts(prepared.units)}
    order = {unit.key: i for i, unit in enumerate(prepared.units)}
    cells = [
        store.done[at]
        for at in sorted(store.done, key=lambda at: (order.get(at[0], -1), at[1], at[2]))
        if at[0] in wanted and at[1] in recipes and (not at[2] or at[0] in repeated)
    ]
    failed = [
        {name: record[name] for name in ("task", "where", "recipe", "error")}
        for at, record in store.failed.items()
        if at not in store.done
    ]
    return {
        **prepared.header,
        "recipes": list(prepared.recipes),
        "tasks": list(dict.fromkeys(unit.task for unit in prepared.units)),
        "rows": summarize(cells, prepared.recipes),
        "failed": failed,
    }
