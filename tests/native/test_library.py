"""The loader: which file it takes, what it refuses, variants, threads, fork beside torch."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.native import cpp

from kvik import machine, native
from kvik.errors import KvikError


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test looks for the library anew, and leaves none of its choices behind."""
    monkeypatch.delenv("KVIK_ISA", raising=False)
    native.library.cache_clear()
    yield
    monkeypatch.undo()
    native.library.cache_clear()
    if (lib := native.library()) is not None:
        native.select(lib, native.variants(lib)[0])


@pytest.fixture
def lib() -> ctypes.CDLL:
    """The library of this installation, or the one that KVIK_NATIVE names."""
    found = native.library()
    if found is None:
        pytest.skip("there is no native library: kvik is installed without it, or it is off")
    return found


def script(code: str, **environment: str) -> str:
    """What a process of its own prints; it must end well."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def exponential(lib: ctypes.CDLL, x: list[float]) -> list[float]:
    """e^x by the library; eight numbers."""
    array = ctypes.c_float * 8
    result = array()
    lib.kvik_exp(array(*x), result, ctypes.c_int64(8))
    return list(result)


def test_off_is_none_and_no_file_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVIK_NATIVE", "off")
    assert native.library() is None
    monkeypatch.delenv("KVIK_NATIVE")
    native.library.cache_clear()
    monkeypatch.setattr(native, "candidates", lambda: [tmp_path / "absent.so"])
    assert native.library() is None


@pytest.mark.parametrize("content", [None, b"", b"garbage" * 100, b"\x7fELF" + bytes(200)])
def test_a_named_file_that_is_no_library_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "some.so"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("KVIK_NATIVE", str(file))
    with pytest.raises(KvikError, match=r"some\.so cannot be loaded .*KVIK_NATIVE=off"):
        native.library()


@pytest.fixture
def stub(tmp_path: Path) -> Callable[[str], Path]:
    """Compiles C++ text into a library."""

    def compiled(text: str) -> Path:
        source, target = tmp_path / "stub.cpp", tmp_path / "stub.so"
        source.write_text(text)
        cpp.run(cpp.compiler(), "-shared", "-fPIC", source, "-o", target)
        return target

    return compiled


def test_a_library_of_another_interface_is_refused(
    monkeypatch: pytest.MonkeyPatch, stub: Callable[[str], Path]
) -> None:
    other = native.ABI + 41
    file = stub(f'extern "C" int kvik_abi() {{ return {other}; }}')
    monkeypatch.setenv("KVIK_NATIVE", str(file))
    with pytest.raises(KvikError, match=f"interface {other} .* needs {native.ABI}.*again"):
        native.library()


def test_a_library_that_is_not_ours_is_refused(
    monkeypatch: pytest.MonkeyPatch, stub: Callable[[str], Path]
) -> None:
    monkeypatch.setenv("KVIK_NATIVE", str(stub("int nothing;")))
    with pytest.raises(KvikError, match=r"cannot be loaded .*kvik_abi"):
        native.library()


def test_doctor_says_why_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from kvik import doctor

    monkeypatch.setenv("KVIK_NATIVE", "off")
    assert doctor.native_library()["why"] == "KVIK_NATIVE=off"
    native.library.cache_clear()
    monkeypatch.setenv("KVIK_NATIVE", str(tmp_path / "absent.so"))
    assert "cannot be loaded" in doctor.native_library()["why"]


@pytest.mark.parametrize(("compilers", "advice"), [(["c++"], "install kvik again"), ([], "g++")])
def test_doctor_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compilers: list[str], advice: str
) -> None:
    from kvik import doctor

    for name in compilers:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KVIK_NATIVE", raising=False)
    monkeypatch.setattr(native, "candidates", lambda: [])
    found = doctor.native_library()
    assert found["file"] is None
    assert advice in found["why"]


def test_an_unknown_instruction_set_is_refused(
    monkeypatch: pytest.MonkeyPatch, lib: ctypes.CDLL
) -> None:
    native.library.cache_clear()
    monkeypatch.setenv("KVIK_ISA", "mmx")
    with pytest.raises(KvikError, match=r"cannot run the 'mmx' kernels; it runs .*scalar"):
        native.library()


def test_every_variant_can_be_chosen_and_computes_the_same(
    monkeypatch: pytest.MonkeyPatch, lib: ctypes.CDLL
) -> None:
    names = native.variants(lib)
    assert names[-1] == "scalar"
    assert native.variant(lib) == names[0]
    x = [0.0, 1.0, -1.0, 5.5, -20.25, 80.0, -87.0, 0.001]
    results = []
    for name in names:
        native.library.cache_clear()
        monkeypatch.setenv("KVIK_ISA", name)
        chosen = native.library()
        assert chosen is not None
        assert native.variant(chosen) == name
        results.append(exponential(chosen, x))
    assert all(result == results[0] for result in results)


def test_threads_are_those_granted_and_can_be_set(lib: ctypes.CDLL) -> None:
    assert native.threads(lib) == machine.granted_threads()
    for count, granted in ((3, 3), (0, 1), (-5, 1), (2, 2)):
        native.set_threads(lib, count)
        assert native.threads(lib) == granted


@pytest.mark.parametrize(("asked", "granted"), [("1", 1), ("4096", machine.usable_cores())])
def test_threads_follow_the_environment(lib: ctypes.CDLL, asked: str, granted: int) -> None:
    code = "from kvik import native; print(native.threads(native.library()))"
    assert int(script(code, OMP_NUM_THREADS=asked)) == granted


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kernels_survive_fork_with_torch_in_between(lib: ctypes.CDLL) -> None:
    """Parent and child, and the child's child, compute with both, before and after the fork."""
    assert (
        script(
            """
        import ctypes, os, warnings
        import torch
        from kvik import native

        lib = native.library()
        native.set_threads(lib, 2)
        torch.set_num_threads(1)
        numbers = torch.linspace(-3, 3, 1 << 16)

        def agree():
            found = torch.empty_like(numbers)
            for _ in range(5):
                lib.kvik_exp(ctypes.c_void_p(numbers.data_ptr()),
                             ctypes.c_void_p(found.data_ptr()), ctypes.c_int64(len(numbers)))
                torch.testing.assert_close(found, numbers.exp(), rtol=1e-6, atol=0)
                assert float((numbers @ numbers) + found.sum()) > 0

        def forked(work):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    work()
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0

        agree()
        for _ in range(3):
            forked(lambda: (agree(), forked(agree), agree()))
            agree()
        print("done")
        """
        )
        == "done\n"
    )
