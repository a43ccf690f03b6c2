"""Builds the C++ tests and tools of csrc/tests with CMake, once per kind and session."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tool(name: str) -> str:
    """A program of this Python's environment, or of the machine; the test is skipped without it."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def compiler() -> str:
    """The C++ compiler; the test is skipped without one."""
    return tool("c++")


def run(*command: str | Path, seconds: float = 300) -> str:
    """What the command prints; its output is in the message when it fails."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


@cache
def configured(folder: Path, *options: str) -> Path:
    """A configured build folder with the C++ tests switched on."""
    compiler()
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"]
    run(tool("cmake"), "-S", ROOT, "-B", folder, *generator, "-DKVIK_TESTS=ON", *options)
    return folder


def build(folder: Path, *targets: str) -> None:
    """Compile these targets, or everything."""
    chosen = ["--target", *targets] if targets else []
    run(tool("cmake"), "--build", folder, *chosen, seconds=900)
