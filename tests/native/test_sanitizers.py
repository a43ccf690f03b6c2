"""The C++ tests pass under AddressSanitizer and UBSan: the machine's best variant.

All variants of a machine: make native-test.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.native import cpp

from kvik import machine

KERNELS = cpp.ROOT / "csrc" / "kernels"
FUNCTION = re.compile(r"^static inline .*?\b(\w+|operator\S)\(", re.MULTILINE)


@pytest.fixture(scope="module")  # for one test: each process of a parallel run would build it anew
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sanitized")
    options = ["-DKVIK_SANITIZE=address,undefined"]
    if "avx2" in (sets := machine.instruction_sets()):  # compiling what cannot run takes long
        best = "avx512" if {"avx512f", "avx512_vnni"} <= set(sets) else "avx2"
        options.append(f"-DKVIK_ONLY={best}")
    cpp.configured(folder, *options)
    cpp.build(folder)
    return folder


@pytest.mark.slow
def test_cpp_tests_pass_under_sanitizers(sanitized: Path) -> None:
    output = cpp.run(cpp.tool("ctest"), "--test-dir", sanitized, "--output-on-failure")
    assert "100% tests passed" in output


@pytest.mark.slow
def test_the_sanitizers_are_on(tmp_path: Path) -> None:
    """Negative control: a read past the end and an overflow, built alike, end the program."""
    source = tmp_path / "fault.cpp"
    source.write_text(
        "#include <vector>\n#include <climits>\n"
        "int main(int count, char**) {\n"
        "    std::vector<int> v(4);\n"
        "    int past = count == 1 ? v.data()[count + 3] : INT_MAX;\n"
        "    return past + count < 0;\n}\n"
    )
    flags = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    cpp.run(cpp.compiler(), *flags, source, "-o", tmp_path / "fault")
    for words, fault in (([], "heap-buffer-overflow"), (["x"], "signed integer overflow")):
        done = subprocess.run([tmp_path / "fault", *words], capture_output=True, text=True)
        assert done.returncode != 0
        assert fault in done.stderr


def test_every_wrapper_has_a_probe_and_every_variant_has_every_wrapper() -> None:
    probes = (cpp.ROOT / "csrc" / "tests" / "probe.cpp").read_text()
    names = set(FUNCTION.findall((KERNELS / "simd_scalar.h").read_text()))
    assert len(names) > 30
    for variant in ("x86", "neon"):
        missing = names - set(FUNCTION.findall((KERNELS / f"simd_{variant}.h").read_text()))
        assert not missing, variant
    for name in names:
        assert re.search(rf"\b{re.escape(name)}[(<]", probes) or name.startswith("operator"), name
