"""What the README tells people to type works."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```(sh|python)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.S | re.M)
COMMANDS = [
    line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines() if line.strip()
]
# These are what runs this test, or take minutes; CI runs them by themselves.
ELSEWHERE = ("make ", "git ", "cd ")
CHEAP = ("kvik models", "kvik doctor", "kvik --help", "kvik plan ", "kvik export ")


def _cost(command: str) -> list[pytest.MarkDecorator]:
    return (
        []
        if command.startswith(CHEAP) and " get " not in command
        else [pytest.mark.slow, pytest.mark.model]
    )


@pytest.fixture
def path_with_kvik(tmp_path: Path) -> dict[str, str]:
    """An environment whose first ``kvik`` is the code under test."""
    command = tmp_path / "bin" / "kvik"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvik "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return {**os.environ, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=_cost(command))
        for command in COMMANDS
        if not command.startswith(ELSEWHERE)
    ],
)
def test_command(command: str, path_with_kvik: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        command,
        shell=True,
        cwd=tmp_path,
        env=path_with_kvik,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("code", [text for kind, text in BLOCKS if kind == "python"])
def test_python(code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_readme_names_the_two_commands() -> None:
    assert {"make demo", "make test"} <= set(COMMANDS)
