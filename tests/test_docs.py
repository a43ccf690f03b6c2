"""The documentation that the code can check."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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
