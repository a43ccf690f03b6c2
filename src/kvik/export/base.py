"""What an export is, and how one is made."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvik.errors import KvikError
from kvik.plan.request import Request

DTYPE = "the model computes in the type of the cache (--dtype): leave both out for its own"
UNPUBLISHED = ("palm",)  # families whose weights nobody outside has


@dataclass(frozen=True)
class Exported:
    """A launch command (or Python code), files that it reads, and what it leaves out.

    ``cannot`` has every part of the recipe that the engine has no words for, with the reason.
    """

    engine: str
    command: str
    files: dict[str, str] = field(default_factory=dict)
    cannot: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def export(request: Request, model: str) -> Exported:
    """The launch of ``request.engine`` for ``model``; KvikError where there is none.

    ``request`` is refused where the planner refuses it: a recipe that cannot work is not exported.
    """
    from kvik.export.targets import TARGETS

    if request.engine not in TARGETS:
        near = difflib.get_close_matches(request.engine, TARGETS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(TARGETS)}"
        if request.engine == "kvik":
            hint = f"kvik needs none: kvik run {model} --kv {shlex.quote(request.kv)}"
        raise KvikError(f"no export to {request.engine!r}: {hint}")
    _ = request.layers  # a recipe that cannot work on the model is refused here
    return TARGETS[request.engine](request, model)


def command(words: Sequence[str | int]) -> str:
    """Words as a shell reads them, an option and its value on a line."""
    lines: list[list[str]] = [[]]
    for word in map(str, words):
        if word.startswith("-") and lines[-1]:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return " \\\n    ".join(" ".join(line) for line in lines)


def not_said(request: Request) -> tuple[str, ...]:
    """Every kind of parallelism that is asked for and that the engine has no option for."""
    return tuple(
        f"--{name} {count}: no option for it"
        for name in request.engine_rules.lacks
        if (count := getattr(request.parallel, name)) > 1
    )


@dataclass(frozen=True)
class Opened:
    """What an engine is told to open, and what has to be said of that."""

    name: str
    notes: tuple[str, ...] = ()
    cannot: tuple[str, ...] = ()


def opened(request: Request, model: str) -> Opened:
    """``model`` as an engine opens it that reads Hugging Face names and folders."""
    spec, path, title = request.spec, Path(model), request.engine_rules.title
    if spec.family in UNPUBLISHED:
        return Opened(model, cannot=(f"{model}: its weights were never published",))
    if path.suffix.casefold() == ".gguf":
        why = f"{model}: {title} opens Hugging Face folders; {path.stem} stands for the model's"
        return Opened(path.stem, cannot=(why,))
    if path.name == "config.json":
        folder = path.parent
        return Opened(str(folder if folder.name else folder.absolute()))
    if "/" in model or path.is_dir():
        return Opened(model)
    return Opened(model, notes=(f"{model} stands for the model's Hugging Face name or folder",))


def opened_file(request: Request, model: str) -> Opened:
    """``model`` as llama.cpp opens it: a GGUF file."""
    spec, path = request.spec, Path(model)
    cannot: tuple[str, ...] = ()
    if spec.family in UNPUBLISHED:
        cannot = (f"{model}: its weights were never published",)
    elif spec.family == "whisper":
        cannot = (f"{model}: llama.cpp runs decoders without an encoder; whisper.cpp runs it",)
    if path.suffix.casefold() == ".gguf":
        return Opened(model, cannot=cannot)
    folder = path.parent.absolute() if path.name == "config.json" else path
    name = f"{folder.name}.gguf"
    return Opened(name, (f"{name} stands for the model's GGUF file",), cannot)
