"""The parts that only describe and plan stay light."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

LIGHT = ["kvik", "kvik.cli", "kvik.spec", "kvik.recipe", "kvik.stages", "kvik.plan", "kvik.errors"]


def _exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@pytest.mark.parametrize("module", [m for m in LIGHT if _exists(m)])
def test_light_modules_do_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_answers_in_half_a_second() -> None:
    seconds = []
    for _ in range(3):
        # Processor time: what a busy machine adds is not the program's.
        start = os.times()
        subprocess.run([sys.executable, "-m", "kvik", "--help"], check=True, capture_output=True)
        stop = os.times()
        used = stop.children_user + stop.children_system
        seconds.append(used - start.children_user - start.children_system)
    assert min(seconds) < 0.5, f"kvik --help took {min(seconds):.2f} s"
