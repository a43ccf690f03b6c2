"""The optimised build: instructions as recorded, and no function from the wrong variant."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
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


@pytest.fixture(scope="module")
def optimised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a build of the counting program, compiled as the library is."""
    folder = cpp.configured(tmp_path_factory.mktemp("optimised"))
    cpp.build(folder, "count")
    return folder


@pytest.mark.slow
def test_the_optimised_build(bench: ModuleType, optimised: Path) -> None:
    """No kernel grew, and no variant lends a function; one test, since a build takes minutes."""
    if sys.platform == "linux":  # it reads ELF objects
        check_inline_functions(optimised)
    if shutil.which("valgrind") is None:
        pytest.skip("needs valgrind")
    records = bench.recorded()
    versions = {record["compiler"] for record in records}
    if versions != {bench.compiler()}:
        pytest.skip(f"recorded with {versions}, here is {bench.compiler()}")
    faults = bench.grown(bench.measure(optimised), records)
    assert not faults, f"{faults}; if that is meant: python bench/instructions.py"


def check_inline_functions(optimised: Path) -> None:
    """Linkers keep one copy of an inline function: it must not be one that needs AVX-512.

    Every weak symbol of a variant's object is of its own namespace, or also in the baseline's
    objects, which are linked first.
    """

    def weak(target: str) -> set[str]:
        found: set[str] = set()
        for file in (optimised / "CMakeFiles" / f"{target}.dir").rglob("*.o"):
            lines = cpp.run(cpp.tool("nm"), "-C", file).splitlines()
            found |= {line[19:] for line in lines if line[17:18] in ("W", "V", "u")}
        return found

    baseline = weak("kvik_runtime") | weak("kernels_scalar")
    assert baseline
    for folder in (optimised / "CMakeFiles").glob("kernels_*.dir"):
        name = folder.name.removesuffix(".dir")
        own = f"kvik::{name.removeprefix('kernels_')}::"
        assert {symbol for symbol in weak(name) if own not in symbol} <= baseline, name


def test_growth_is_seen(bench: ModuleType) -> None:
    """Negative control: a count off by more than the tolerance, a lost and an unknown kernel."""
    records = [{"kernel": "a", "instructions": 1000}, {"kernel": "b", "instructions": 50}]
    assert bench.grown({"a": 1020, "b": 50}, records) == []
    assert bench.grown({"a": 1060, "b": 50}, records) == ["a: 1060, recorded 1000"]
    assert bench.grown({"a": 1000, "c": 5}, records) == [
        "b: recorded but gone",
        "c: 5, not recorded",
    ]
