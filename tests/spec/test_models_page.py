"""docs/models.md says what the data says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.plan.ask import ask

from kvik.spec.presets import presets

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_models_is_what_the_presets_say():
    command = [sys.executable, str(ROOT / "tools" / "models_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_page_has_the_figures_of_the_tool():
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.count(" | ") == 7]
    found = {row[0].removeprefix("| ").partition(" (also")[0]: row[2:4] for row in rows[1:]}
    assert set(presets()) <= set(found)
    for name in ("DeepSeek-V4-Flash", "DeepSeek-V4-Pro", "gpt-oss-20b", "GLM-5.3", "Llama-3.1-8B"):
        kv = ask(name, 4096)["kv"]
        said = [kv["bytes_per_token"], kv["growth_bytes_per_token"]]
        assert found[name] == [f"{figure:,}" for figure in said]


def test_the_readme_counts_the_models():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{len(presets())} known models" in " ".join(text.split())


def test_reading_a_preset_loads_neither_torch_nor_numpy():
    code = (
        "import sys; from kvik.spec import ModelSpec; ModelSpec.load('qwen3-8b');"
        "assert not {'torch', 'numpy', 'gguf', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
