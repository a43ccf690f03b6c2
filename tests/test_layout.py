"""The parts that only describe and plan stay light."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time

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
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "kvik", "--help"], check=True, capture_output=True)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5, f"kvik --help took {min(seconds):.2f} s"
