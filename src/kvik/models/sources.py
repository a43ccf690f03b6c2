"""Where models come from: a path, a built-in name, or a Hugging Face repo id.

Built-in models are kept in ``models`` below kvik's home, each with a stamp beside it that says
when it was last verified, so that its SHA-256 is not computed at every start.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import logging
import os
import re
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from kvik import env
from kvik.errors import ModelError
from kvik.models.catalog import BUILTIN, BuiltIn
from kvik.models.fetch import Progress, fetch
from kvik.models.hub import snapshot

__all__ = ["BUILTIN", "BuiltIn", "Progress", "folder", "get", "local", "present", "resolve"]

REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

_log = logging.getLogger(__name__)


def folder() -> Path:
    """Where built-in models are kept; it need not exist yet."""
    return env.home() / "models"


def present() -> list[str]:
    """Names of the built-in models that lie in the folder, as large as they should be."""
    found = []
    for model in BUILTIN.values():
        path = folder() / model.file
        if path.is_file() and path.stat().st_size == model.size:
            found.append(model.name)
    return found


def resolve(name_or_path: str | Path, progress: Progress | None = None) -> Path:
    """The file or folder of a model: a built-in name, an existing path, or a repo id.

    Built-in names come first whatever their case; ``./name`` means a folder of that name. What
    is not on this machine is fetched. ModelError names the nearest built-in name.
    """
    text = os.fspath(name_or_path)
    if text.lower() in BUILTIN:
        return get(text, progress)
    return local(text) or snapshot(text)


def local(name_or_path: str | Path) -> Path | None:
    """What ``resolve`` would give, where it is here; None for what has to be fetched.

    ModelError for what is neither here nor the name of something that can be fetched.
    """
    text = os.fspath(name_or_path)
    if model := BUILTIN.get(text.lower()):
        target = folder() / model.file
        return target if _stamped(model, target) else None
    if not text:
        raise _unknown(text)
    try:
        path = Path(text).expanduser()
        if path.exists():
            return path
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{text[:80]}: cannot be read ({error})") from error
    if path.suffix.lower() in (".gguf", ".json", ".safetensors") or text.startswith(
        (".", "/", "~")
    ):
        raise ModelError(f"{text}: no such file or folder")
    if REPO_ID.fullmatch(text):
        return None
    raise _unknown(text)


def get(name: str, progress: Progress | None = None) -> Path:
    """The file of the built-in model ``name``, fetched if it is absent or damaged.

    A second process waits for the first and then uses the same file.
    """
    model = BUILTIN.get(name.lower())
    if model is None:
        raise _unknown(name)
    target, progress = folder() / model.file, progress or _silent
    if _stamped(model, target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{target}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(f"waiting for another process to fetch {model.name}", 0, 0)
            lock.acquire()
    except OSError as error:
        raise ModelError(f"{target.parent} cannot be used ({error}): set KVIK_HOME") from error
    try:
        if not _verified(model, target):
            fetch(model, target, progress)
            _stamp(model, target)
    finally:
        lock.release()
    return target


def _unknown(name: str) -> ModelError:
    near = difflib.get_close_matches(name.lower(), BUILTIN, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known names are {', '.join(BUILTIN)};"
    return ModelError(
        f"no model {name[:80]!r}: {hint} a path to a .gguf file or folder and a Hugging Face "
        "repo id (org/name) work too"
    )


def _silent(what: str, done: int, total: int) -> None:
    """Progress that nobody asked for."""


def _verified(model: BuiltIn, target: Path) -> bool:
    """Whether the file is whole; says so when it is there and is not."""
    if _stamped(model, target):
        return True
    if not target.exists():
        return False
    size = target.stat().st_size
    if size == model.size:
        with target.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == model.sha256:
                _stamp(model, target)
                return True
        fault = "its SHA-256 is wrong"
    else:
        fault = f"it has {size} of {model.size} bytes"
    _log.warning("%s is damaged (%s): fetching it again", target, fault)
    return False


def _stamp_path(target: Path) -> Path:
    return target.with_name(target.name + ".json")


def _stamp_text(model: BuiltIn, target: Path) -> str:
    """What identifies a verified file: rewriting it changes the time, if not the size."""
    state = target.stat()
    facts = {"size": state.st_size, "mtime_ns": state.st_mtime_ns, "sha256": model.sha256}
    return json.dumps(facts)


def _stamped(model: BuiltIn, target: Path) -> bool:
    try:
        return _stamp_path(target).read_text() == _stamp_text(model, target)
    except (OSError, ValueError):
        return False


def _stamp(model: BuiltIn, target: Path) -> None:
    # A stamp that is absent or half written does not match, and costs one more look at the file.
    with suppress(OSError):
        _stamp_path(target).write_text(_stamp_text(model, target))
