"""What a reader needs in order to judge a figure: machine, versions, commit, command."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from kvik import __version__, machine


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


def version_of(package: str) -> str | None:
    """The installed version of a package, without importing it; None where it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def command() -> str:
    """The command line as a person would type it."""
    return shlex.join(["kvik", *sys.argv[1:]])


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
