"""The kernels execute as many instructions as were recorded, within a few per cent."""

from __future__ import annotations

import importlib.util
import shutil
from types import ModuleType

import pytest
from tests.native import cpp


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """bench/instructions.py, which is a script."""
    path = cpp.ROOT / "bench" / "instructions.py"
    spec = importlib.util.spec_from_file_location("bench_instructions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_no_kernel_grew(bench: ModuleType) -> None:
    cpp.compiler()
    cpp.tool("cmake")
    if shutil.which("valgrind") is None:
        pytest.skip("needs valgrind")
    records = bench.recorded()
    versions = {record["compiler"] for record in records}
    if versions != {bench.compiler()}:
        pytest.skip(f"recorded with {versions}, here is {bench.compiler()}")
    assert bench.grown(bench.measure(), records) == []


def test_growth_is_seen(bench: ModuleType) -> None:
    """Negative control: a count off by more than the tolerance, a lost and an unknown kernel."""
    records = [{"kernel": "a", "instructions": 1000}, {"kernel": "b", "instructions": 50}]
    assert bench.grown({"a": 1020, "b": 50}, records) == []
    assert bench.grown({"a": 1060, "b": 50}, records) == ["a: 1060, recorded 1000"]
    assert bench.grown({"a": 1000, "c": 5}, records) == [
        "b: recorded but gone",
        "c: 5, not recorded",
    ]
