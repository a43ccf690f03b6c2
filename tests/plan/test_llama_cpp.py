"""llama.cpp's own log against the planner, on the real models."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.plan.ask import MIB, ask

from kvik.models import sources
from kvik.spec.load import find_spec

CODE = """
import sys
from llama_cpp import Llama
import llama_cpp
path, context, kind = sys.argv[1], int(sys.argv[2]), getattr(llama_cpp, "GGML_TYPE_" + sys.argv[3])
Llama(path, n_ctx=context, n_batch=512, n_ubatch=512, type_k=kind, type_v=kind, flash_attn=True,
      swa_full=False, verbose=True)
"""
LINE = re.compile(r"llama_kv_cache\w*: size =\s*([\d.]+) MiB")


def logged(path: Path, context: int, kind: str, python: str = sys.executable) -> list[float]:
    """MiB of every KV buffer that llama.cpp says it made: of the full and the windowed part."""
    command = [python, "-c", CODE, str(path), str(context), kind.upper()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return [float(size) for size in LINE.findall(done.stderr)]


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None,
    reason="llama-cpp-python is not installed: pip install 'kvik[llamacpp]'",
)
@pytest.mark.parametrize("context", [1024, 4096])
@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("model", ["smollm2-135m", "gemma3-270m"])
def test_planned_buffers_are_those_that_are_logged(model: str, kind: str, context: int) -> None:
    path = sources.get(model)
    sizes = logged(path, context, kind)
    assert sizes, "no line of the log names a KV buffer"
    found = ask(find_spec(path), context, kind, engine="llamacpp", inflight=512)
    planned = found["engine"]["reserved_bytes_per_request"] / MIB
    # The log rounds each buffer to 0.01 MiB.
    assert abs(planned - sum(sizes)) <= 0.001 * planned + 0.005 * len(sizes)
