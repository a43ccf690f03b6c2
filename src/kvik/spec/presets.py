"""Built-in models: reduced configurations by name, read by the same reader as config.json."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from kvik.errors import SpecError
from kvik.spec.hf_config import plan_from_config
from kvik.spec.model import ModelSpec

DATA = Path(__file__).with_name("presets.json")

# What publishers add to a name and what changes no size. Digits and versions always count.
_SILENT = {"instruct", "it", "chat", "hf", "base", "meta"}


@cache
def presets() -> dict[str, dict[str, Any]]:
    """Every preset by its name, with ``config``, ``source`` and perhaps ``aliases``."""
    found: dict[str, dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))
    return found


def preset_spec(name: str) -> ModelSpec:
    """The preset called ``name``, in any case; SpecError names the nearest ones otherwise.

    An owner before a slash, hyphens and words such as Instruct do not matter:
    ``meta-llama/Llama-3.1-8B-Instruct`` is ``llama-3.1-8b``.
    """
    known = _by_key().get(_key(name))
    if known is None:
        raise SpecError(unknown(name))
    entry = presets()[known]
    spec = plan_from_config(entry["config"], known, known)
    return _described(spec, entry["source"])


def _described(spec: ModelSpec, source: str) -> ModelSpec:
    reason = "a built-in name gives sizes only; name a GGUF file or a folder with weights to run"
    return replace(spec, source=source, unrunnable=reason)


def unknown(name: str) -> str:
    """What to say of a name that is neither a file nor a preset."""
    shown = name if name.isprintable() and name else ascii(name)
    shown = shown if len(shown) <= 80 else shown[:80] + "..."
    near = difflib.get_close_matches(_key(name[:80]), _by_key(), n=3, cutoff=0.6)
    names = list(dict.fromkeys(_by_key()[key] for key in near))
    hint = f"did you mean {' or '.join(names)}?" if names else "docs/models.md lists the names"
    return f"{shown}: no such file, folder or built-in model; {hint}"


@cache
def _by_key() -> dict[str, str]:
    return {
        _key(known): name
        for name, entry in presets().items()
        for known in (name, *entry.get("aliases", ()))
    }


def _key(name: str) -> str:
    words = re.split(r"[-_ ]+", name.casefold().rsplit("/", 1)[-1])
    return "".join(word for word in words if word not in _SILENT)
