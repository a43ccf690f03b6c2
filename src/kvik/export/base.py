"""What an export is, and how one is made."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvik.errors import KvikError
from kvik.plan.request import Request

SAME_BYTES = (
    "the whole model computes in this 16-bit type: where it needs the other one, write --kv fp16 "
    "or --kv bf16, whose bytes are the same"
)


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


def only_one_device(request: Request, *names: str) -> tuple[str, ...]:
    """What to say of each of ``names`` (tp, cp, pp) that is asked for and has no option."""
    return tuple(
        f"--{name} {count}: no option for it"
        for name in names
        if (count := getattr(request.parallel, name)) > 1
    )
