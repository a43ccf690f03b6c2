"""Stages of other packages are found by their metadata; without them nothing is paid."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MODULE = """
from dataclasses import dataclass
from typing import ClassVar
from kvik.recipe import Positional

@dataclass(frozen=True)
class Newest(Positional):
    \"\"\"Keeps the newest 7 tokens.\"\"\"
    names: ClassVar = {"newest7": {}}
    last = 7
"""
CODE = "import sys; from kvik.recipe import Recipe; print(Recipe.parse('newest7')); "
CODE += "print('importlib.metadata' in sys.modules)"


def parse(folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=env)


def test_a_plugin_is_found_by_its_entry_point(tmp_path: Path) -> None:
    info = tmp_path / "newest-1.0.dist-info"
    info.mkdir()
    (tmp_path / "newest.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: newest\nVersion: 1.0\n")
    assert "unknown stage 'newest7'" in parse(tmp_path).stderr
    (info / "entry_points.txt").write_text("[kvik.stages]\nnewest = newest\n")
    assert parse(tmp_path).stdout.split() == ["newest7", "True"]


def test_metadata_is_left_alone_without_plugins() -> None:
    code = "import sys, kvik.stages; print('importlib.metadata' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
