"""The parts that only describe and plan stay light."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

LIGHT = ["kvik", "kvik.cli", "kvik.spec", "kvik.recipe", "kvik.stages", "kvik.plan", "kvik.errors"]
LIGHT += ["kvik.export", "kvik.commands.plan", "kvik.commands.export"]


def _exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@pytest.mark.parametrize("module", [m for m in LIGHT if _exists(m)])
def test_light_modules_do_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


PLAN = ("plan", "gemma-3-27b", "--kv", "int8/int4", "--device", "h100")


@pytest.mark.parametrize("args", [("--help",), PLAN])
def test_answers_in_half_a_second(args: tuple[str, ...], tmp_path: Path) -> None:
    # As installed: compiled once, here by the first run, whatever the environment says.
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    seconds = []
    for _ in range(4):
        # Processor time: what a busy machine adds is not the program's.
        start = os.times()
        subprocess.run(
            [sys.executable, "-m", "kvik", *args], check=True, capture_output=True, env=env
        )
        stop = os.times()
        used = stop.children_user + stop.children_system
        seconds.append(used - start.children_user - start.children_system)
    assert min(seconds) < 0.5, f"kvik {' '.join(args)} took {min(seconds):.2f} s"


def test_planning_does_not_import_torch() -> None:
    everything = (*PLAN, "--explain", "--stack")
    code = f"import sys; from kvik.cli import cli, guarded; guarded(cli, {everything}); "
    code += "guarded(cli, ('export', 'llama-3-8b', '--kv', 'int8', '--engine', 'vllm')); "
    code += "sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == 0
    assert b"Gemma-3-27B" in done.stdout
