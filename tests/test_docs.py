"""The documentation that the code can check."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_technique_pages_are_what_the_code_says() -> None:
    command = [sys.executable, str(ROOT / "tools" / "technique_pages.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_example_stage_is_complete_and_short() -> None:
    """Its code runs as printed, in a process of its own, in under 40 lines."""
    text = (ROOT / "docs" / "writing-a-stage.md").read_text()
    stage, proof = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(stage.splitlines()) < 40
    done = subprocess.run(
        [sys.executable, "-c", stage + proof], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


PLANNER = (ROOT / "docs" / "planner.md").read_text()


@pytest.mark.parametrize("block", re.findall(r"^    \$ (kvik .*)\n((?:    .*\n)+)", PLANNER, re.M))
def test_the_examples_of_the_planner_print_what_is_shown(block: tuple[str, str]) -> None:
    command, shown = block
    done = subprocess.run(
        [sys.executable, "-m", *command.split()], capture_output=True, text=True, check=True
    )
    printed = {" ".join(line.split()) for line in (done.stdout + done.stderr).splitlines()}
    for line in shown.splitlines():
        words = " ".join(line.split())
        if words.startswith("... "):
            pieces = words.strip(". ").split(", ")
            assert all(piece in " ".join(printed) for piece in pieces)
        elif words and words != "...":
            assert words in printed


def test_the_code_of_the_planner_runs() -> None:
    code = re.findall(r"```python\n(.*?)```", PLANNER, re.DOTALL)[0]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[0]) == 32_768 * 53_760


ENGINE = (ROOT / "docs" / "engine.md").read_text()


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("number", range(2))
def test_the_examples_of_the_engine_run(number: int) -> None:
    """As printed, on the real model, each in a process of its own."""
    code = re.findall(r"```python\n(.*?)```", ENGINE, re.DOTALL)[number]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_the_fields_of_a_request_are_in_its_table() -> None:
    """Every field but the prompt and the number of its first sample."""
    from dataclasses import fields

    from kvik.engine.request import Request

    table = ENGINE.split("## What can be asked")[1].split("## ")[0]
    for field in fields(Request):
        assert f"`{field.name}`" in table or field.name in ("prompt", "sample")


def test_every_task_is_described_as_the_code_does() -> None:
    from kvik.evaluate.tasks import Task

    page = (ROOT / "docs" / "eval.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.M)
    assert rows == [(name, task.meaning) for name, task in Task.registry.items()]
