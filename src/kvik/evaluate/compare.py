"""Recipes side by side on one model: bytes, quality, needles, speed.

The full fp32 cache runs first and leaves its logits; every recipe then runs in its own process.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kvik import machine
from kvik.errors import CapacityError, KvikError, RecipeError
from kvik.evaluate import baseline as earlier
from kvik.evaluate import growth
from kvik.evaluate.needle import Needle, needle_map, template
from kvik.evaluate.provenance import environment, files_sha256, shown_name, text_sha256
from kvik.evaluate.quality import SCORED, Window
from kvik.evaluate.speed import STEPS, points, steps
from kvik.evaluate.text import BUILT_IN_TEXT, chosen_text, library_text, windows
from kvik.evaluate.worker import Task, session_tokens
from kvik.models.sources import Progress as Fetching

if TYPE_CHECKING:
    from kvik.spec import ModelSpec

REFERENCE = "fp32"
FIGURES = (
    "planned_bytes",
    "measured_bytes",
    "bytes_per_token",
    "kl_mean",
    "kl_p99",
    "top1",
    "ppl",
    "needle_hits",
    "needle_total",
    "prefill_tok_s",
    "decode_tok_s",
    "peak_rss_bytes",
)
# What a recipe's figures are drawn from; ``needle_cells`` is in the order of ``needle.cells``.
DETAILS = (
    "growth_bytes",
    "outgrows_weights_at",
    "layer_bytes",
    "table_bytes",
    "kept",
    "decode_curve",
    "needle_cells",
)
DEFAULT_CONTEXT = 2048


class Progress(Protocol):
    """Hears how far a comparison is."""

    def begin(self, recipe: str, total: int) -> None:
        """A recipe starts; ``total`` tokens are to be worked through."""

    def advance(self, stage: str, tokens: int) -> None:
        """Some tokens of the current recipe are done."""

    def end(self, result: dict[str, Any]) -> None:
        """The current recipe has its figures, or its ``error``."""


@dataclass(frozen=True)
class Prepared:
    """Everything that is checked and made before the first recipe runs."""

    model: str
    path: Path
    recipes: tuple[str, ...]
    context: int
    spec: ModelSpec
    weights: int | None
    weights_sha256: str
    text: dict[str, str]
    windows: list[list[int]]
    needles: list[Needle]
    needle_prompt: str
    baseline: earlier.Baseline | None
    warnings: tuple[str, ...]


def prepare(
    model: str,
    recipes: Sequence[str],
    *,
    context: int = DEFAULT_CONTEXT,
    text: str | Path | None = None,
    offsets: int = 1,
    baseline: str | Path | None = None,
    fetching: Fetching | None = None,
) -> Prepared:
    """Check the recipes, the text, the model and the room; raises KvikError before anything runs.

    ``baseline`` is the compare.json of an earlier run of the same model, context and text.

    Bad recipes are listed together, each with its reason, and so are those whose cache does not
    fit in memory. ``fetching`` hears of the download of a model that is not here.
    """
    if context < 1 or offsets < 1:
        raise KvikError("--context and --offsets must be at least 1")
    from kvik.models import sources
    from kvik.spec import load_spec
    from kvik.spec.load import find_spec

    name, prose = chosen_text(text)
    said = {"name": name, "sha256": text_sha256(prose)}
    before = None if baseline is None else earlier.read(baseline)
    if sources.local(model) is None:
        resolved(recipes, None)
    path = sources.resolve(model, fetching)
    spec = load_spec(path)
    names = resolved(recipes, spec)
    from kvik.evaluate.tasks.spelling import Spelling
    from kvik.models.identity import weight_files
    from kvik.models.tokenizer import Tokenizer
    from kvik.plan.weights import weight_bytes

    tokenizer = Tokenizer.from_path(path)
    length = Window.length(context)
    cut = _windows(tokenizer, prose, length, offsets, "the text" if text is None else str(text))
    check_memory(names, spec, session_tokens(context))
    check_disk(SCORED * spec.vocab * 4 * offsets)
    sha256 = files_sha256([file.path for file in weight_files(path)])
    if before is not None:
        before.check(sha256, context, said["sha256"], offsets)
    warnings = []
    if length > spec.context:
        warnings.append(
            f"{length:,} tokens are beyond the {spec.context:,} that {model} was trained on"
        )
    spelling = Spelling(tokenizer)
    noise = tokenizer.encode(library_text(), bos=False, special=False)
    try:
        needles = needle_map(spelling, noise, context)
    except KvikError as error:
        warnings.append(f"{error}; it is left out")
        needles = []
    planned = find_spec(path)
    return Prepared(
        model=model,
        path=path,
        recipes=names,
        context=context,
        spec=spec,
        weights=weight_bytes(planned.params, "as-is", planned.stored)[0],
        weights_sha256=sha256,
        text=said,
        windows=cut,
        needles=needles,
        needle_prompt=template(spelling),
        baseline=before,
        warnings=tuple(warnings),
    )


def resolved(recipes: Sequence[str], spec: ModelSpec | None) -> tuple[str, ...]:
    """Canonical recipes without repetitions; one RecipeError with the reasons of all bad ones.

    Without a ``spec``, which is what a model has once it is fetched, they are only parsed.
    """
    from kvik.recipe import Recipe

    names: dict[str, None] = {}
    reasons: list[str] = []
    for text in recipes:
        try:
            recipe = Recipe.parse(text)
            if spec is not None:
                recipe.resolve(spec)
            names[str(recipe)] = None
        except RecipeError as error:
            reasons += [f"{text!r}: {reason}" for reason in error.reasons]
    if reasons:
        raise RecipeError(*reasons)
    return tuple(names)


def check_memory(recipes: Sequence[str], spec: ModelSpec, tokens: int) -> None:
    """CapacityError that lists every recipe, the reference too, whose cache does not fit."""
    from kvik.engine.session import check_fits
    from kvik.recipe import Recipe

    reasons = []
    for name in dict.fromkeys((REFERENCE, *recipes)):
        try:
            check_fits(Recipe.parse(name).resolve(spec), tokens)
        except CapacityError as error:
            reasons.append(str(error))
    if reasons:
        raise CapacityError("; ".join(reasons))


def check_disk(need: int) -> None:
    """CapacityError unless the temporary folder has ``need`` bytes for the reference's logits."""
    try:
        folder = tempfile.gettempdir()
        have = shutil.disk_usage(folder).free
    except OSError as error:
        raise CapacityError(f"there is no temporary folder ({error}): set TMPDIR") from None
    if need > have:
        raise CapacityError(
            f"the logits of the full cache need {machine.human_bytes(need)} in {folder} and "
            f"{machine.human_bytes(have)} are free: take fewer --offsets, or set TMPDIR to a "
            "larger folder"
        )


def _windows(tokenizer: Any, prose: str, length: int, count: int, what: str) -> list[list[int]]:
    """Token windows; each begins with the text-start token where the model wants one."""
    ids = tokenizer.encode(prose, bos=True, special=False)
    plain = tokenizer.encode(prose, bos=False, special=False)
    head = ids[: len(ids) - len(plain)]
    cut = windows(plain, length - len(head), count, what=what)
    return [head + part for part in cut]


def run(
    prepared: Prepared,
    progress: Progress,
    *,
    threads: int | None = None,
    launch: Callable[[Task, Path, Progress], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Measure every recipe; returns what ``compare.json`` holds.

    A recipe that fails is reported with its ``error`` and null figures; the others go on.
    """
    threads = threads or machine.threads()
    launch = launch or in_process_of_its_own
    import numpy as np

    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="kvik-compare-") as name:
        folder = Path(name)
        np.save(folder / "windows.npy", np.asarray(prepared.windows, dtype=np.int64))
        for recipe in dict.fromkeys((REFERENCE, *prepared.recipes)):
            task = Task(
                model=str(prepared.path),
                recipe=recipe,
                context=prepared.context,
                windows=str(folder / "windows.npy"),
                reference=str(folder),
                record=recipe == REFERENCE,
                needles=[asdict(needle) for needle in prepared.needles],
                threads=threads,
            )
            progress.begin(recipe, _tokens(task, len(prepared.windows)))
            result = launch(task, folder, progress)
            progress.end(result)
            results[recipe] = _complete(result)
            if recipe == REFERENCE and "error" in result:
                raise KvikError(f"the full {REFERENCE} cache cannot be run: {result['error']}")
    document = {
        "model": shown_name(prepared.model),
        "context": prepared.context,
        "env": environment(threads),
        "results": [results[recipe] for recipe in prepared.recipes],
        **_protocol(prepared, results[REFERENCE]),
    }
    _grow(document, prepared)
    if prepared.baseline is not None:
        prepared.baseline.compare(document)
    return document


def _protocol(prepared: Prepared, full: dict[str, Any]) -> dict[str, Any]:
    """What was measured and how often, beside the figures."""
    # A cell that the full cache misses says nothing about a recipe.
    counted = [cell["hit"] for cell in full["needle_cells"]]
    return {
        "model_sha256": prepared.weights_sha256,
        "weights_bytes": prepared.weights,
        "trained_context": prepared.spec.context,
        "text": prepared.text,
        "quality": {"offsets": len(prepared.windows), "scored": SCORED * len(prepared.windows)},
        "speed": {"contexts": points(prepared.context), "steps": STEPS},
        "needle": {
            "prompt": prepared.needle_prompt,
            "noise": BUILT_IN_TEXT,
            "cells": [{"length": n.length, "depth": n.depth} for n in prepared.needles],
            "sha256": text_sha256(" ".join(str([*n.ids, *n.answer]) for n in prepared.needles)),
            "counted": counted,
        },
    }


def _grow(document: dict[str, Any], prepared: Prepared) -> None:
    """Adds the planned bytes of every recipe against the context."""
    from kvik.recipe import Recipe

    plans = [Recipe.parse(name).resolve(prepared.spec) for name in prepared.recipes]
    size = prepared.weights
    crossings = [None if size is None else growth.outgrows(plan, size) for plan in plans]
    at = growth.contexts(prepared.context, prepared.spec.context, *crossings)
    document["growth"] = {"contexts": at}
    for result, plan, crossing in zip(document["results"], plans, crossings, strict=True):
        if "error" not in result:
            result["growth_bytes"] = growth.growth(plan, at)
            result["outgrows_weights_at"] = crossing


def _tokens(task: Task, count: int) -> int:
    quality = count * (task.context + SCORED)
    return quality + steps(task.context) + sum(len(needle["ids"]) for needle in task.needles)


def _complete(result: dict[str, Any]) -> dict[str, Any]:
    ordered = {"recipe": result["recipe"], **{key: result.get(key) for key in FIGURES + DETAILS}}
    if "error" in result:
        ordered["error"] = result["error"]
    return ordered


def in_process_of_its_own(task: Task, folder: Path, progress: Progress) -> dict[str, Any]:
    """Run a worker to its end; its crash becomes the result's ``error``."""
    order, answer, noise = folder / "task.json", folder / "result.json", folder / "stderr.txt"
    order.write_text(json.dumps(asdict(task)), encoding="utf-8")
    answer.unlink(missing_ok=True)
    command = [sys.executable, "-m", "kvik.evaluate.worker", str(order), str(answer)]
    with (
        noise.open("w", encoding="utf-8") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as worker,
    ):
        try:
            assert worker.stdout is not None
            for line in worker.stdout:
                stage, tokens = json.loads(line)
                progress.advance(stage, tokens)
            status = worker.wait()
        except BaseException:
            worker.kill()
            raise
    if status == 0 and answer.exists():
        result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return result
    lines = noise.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return {"recipe": task.recipe, "error": _cause(status, lines)}


def _cause(status: int, lines: Sequence[str]) -> str:
    if status == -9:
        return "its process was killed, most likely for want of memory: try a smaller --context"
    return lines[-1] if lines else f"its process ended with status {status}"
