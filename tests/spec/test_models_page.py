"""docs/models.md says what the data says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_models_is_what_the_presets_say():
    command = [sys.executable, str(ROOT / "tools" / "models_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_reading_a_preset_loads_neither_torch_nor_numpy():
    code = (
        "import sys; from kvik.spec import ModelSpec; ModelSpec.load('qwen3-8b');"
        "assert not {'torch', 'numpy', 'gguf', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
