"""What doctor says is what would be used."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kvik import machine

COMMAND = "from kvik.cli import main; main()"
# The package's metadata gone too, as on a machine without torch.
WITHOUT_TORCH = """
import sys
from importlib import metadata
sys.modules["torch"] = None
known = metadata.version
def version(name):
    if name == "torch":
        raise metadata.PackageNotFoundError(name)
    return known(name)
metadata.version = version
"""


def doctor(script: str, *args: str, threads: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script + COMMAND, "doctor", *args],
        env={**os.environ, "OMP_NUM_THREADS": threads, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("script", ["", WITHOUT_TORCH])
@pytest.mark.parametrize(("threads", "used"), [("1", 1), ("4096", machine.usable_cores())])
def test_threads_are_those_asked_for_within_the_usable_cores(
    script: str, threads: str, used: int
) -> None:
    cores = json.loads(doctor(script, "--json", threads=threads))["cores"]
    assert cores["used"] == used
    assert cores["usable"] == machine.usable_cores()


def test_without_torch_there_is_no_backend() -> None:
    assert json.loads(doctor(WITHOUT_TORCH, "--json", threads="1"))["backend"] is None
    shown = doctor(WITHOUT_TORCH, threads="1")
    assert "none: torch is not installed (pip install 'kvik[run]')" in shown
    assert "plain torch" not in shown
    assert "reference (plain torch)" in doctor("", threads="1", KVIK_NATIVE="off")
