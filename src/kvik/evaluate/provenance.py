"""What a reader needs in order to judge a figure: machine, versions, commit, command."""

from __future__ import annotations

import hashlib
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from kvik import __version__, machine
from kvik.errors import KvikError


def environment(threads: int) -> dict[str, Any]:
    """The ``env`` of a comparison."""
    return {
        "cpu": machine.cpu_model(),
        "cores": machine.usable_cores(),
        "instruction_sets": machine.instruction_sets(),
        "memory_bytes": machine.memory_limit(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version_of("torch"),
        "kvik": __version__,
        "commit": commit(),
        "command": command(),
    }


def text_sha256(text: str) -> str:
    """SHA-256 of a text's UTF-8 bytes, as ``sha256sum`` gives it for a file without a mark."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def files_sha256(paths: Sequence[Path]) -> str:
    """SHA-256 of a file; of several, the SHA-256 of their digests one after another."""
    try:
        digests = []
        for path in paths:
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256"))
    except OSError as error:
        raise KvikError(f"cannot read {path}: {error.strerror or error}") from None
    if len(digests) == 1:
        return digests[0].hexdigest()
    return hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()


def version_of(package: str) -> str | None:
    """The installed version of a package, without importing it; None where it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def command(*program: str) -> str:
    """The command line as a person would type it; of a whole path only its last part.

    ``program`` is what stands before the arguments, ``kvik`` unless given.
    """
    return shlex.join([*(program or ("kvik",)), *map(_shown_word, sys.argv[1:])])


def _shown_word(word: str) -> str:
    if Path(word).is_absolute():
        return Path(word).name
    name, sign, value = word.partition("=")
    return name + sign + Path(value).name if sign and Path(value).is_absolute() else word


def shown_name(model: str) -> str:
    """A name as given; of a path the last part, as where it lies is nobody's business."""
    return Path(model).resolve().name if Path(model).exists() else model


def commit() -> str | None:
    """The commit that this copy of kvik runs from, ``+`` when files differ; None outside git."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


def _git(root: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *args], check=True, capture_output=True, text=True, timeout=10
    )
    return done.stdout.strip()
