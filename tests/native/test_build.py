"""How kvik is built: with a compiler, without one, what the archives hold, the workflows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from tests.native import cpp

from kvik import __version__

WORKFLOWS = cpp.ROOT / ".github" / "workflows"
ARCHIVED = ("src", "csrc", "pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE")
BUILD = "import sys; from scikit_build_core.build import build_{0} as b; print(b(sys.argv[1]))"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of what a build reads."""
    folder = tmp_path / "source"
    folder.mkdir()
    for name in ARCHIVED:
        path = cpp.ROOT / name
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, folder / name)
    return folder


def build(kind: str, source: Path, out: Path, **environment: str) -> Path:
    """The archive of that kind that the build backend makes."""
    pytest.importorskip("scikit_build_core", reason="needs scikit-build-core")
    folders = [str(Path(cpp.tool(name)).parent) for name in ("cmake", "ninja")]
    paths = os.pathsep.join([*folders, os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-c", BUILD.format(kind), str(out)],
        cwd=source,
        env={**os.environ, "PATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out / done.stdout.splitlines()[-1]


def contents(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_the_wheel_holds_the_library_and_serves_every_python(source: Path, tmp_path: Path) -> None:
    cpp.compiler()
    quick = "-DKVIK_LEVEL=-O0"  # optimising takes minutes and is not the question here
    wheel = build("wheel", source, tmp_path, CMAKE_ARGS=quick)
    assert re.match(rf"kvik-{__version__}-py3-none-(?!any)", wheel.name)
    libraries = [name for name in contents(wheel) if "kvik_native" in name]
    assert len(libraries) == 1
    assert libraries[0].startswith("kvik/")


@pytest.mark.parametrize("fault", ["no compiler", "a compile error"])
def test_without_a_working_compiler_the_wheel_is_plain_python(
    source: Path, tmp_path: Path, fault: str
) -> None:
    if fault == "no compiler":
        wheel = build("wheel", source, tmp_path, CXX=shutil.which("false") or "/bin/false")
    else:
        (source / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.20)\nproject(kvik LANGUAGES NONE)\n"
            'add_custom_target(broken ALL COMMAND "${CMAKE_COMMAND}" -E false)\n'
        )
        wheel = build("wheel", source, tmp_path)
    assert wheel.name == f"kvik-{__version__}-py3-none-any.whl"
    assert {"kvik/native.py", "kvik/py.typed"} <= contents(wheel)


def test_the_source_archive_holds_the_kernels(source: Path, tmp_path: Path) -> None:
    archive = build("sdist", source, tmp_path)
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    expected = {str(p.relative_to(cpp.ROOT)) for p in (cpp.ROOT / "csrc").rglob("*") if p.is_file()}
    assert expected | {"CMakeLists.txt", "src/kvik/native.py"} <= names


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_a_workflow_is_well_formed_and_pinned(name: str) -> None:
    text = (WORKFLOWS / name).read_text()
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    assert True in workflow or "on" in workflow  # YAML 1.1 reads `on` as a truth value
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
            for script in re.findall(r"python (tools/\S+)", step.get("run", "")):
                assert (cpp.ROOT / script).is_file()
            for target in re.findall(r"^make (\S+)", step.get("run", "")):
                assert re.search(rf"^{target}:", (cpp.ROOT / "Makefile").read_text(), re.MULTILINE)


def test_wheels_are_built_and_tried_for_every_platform() -> None:
    workflow = yaml.safe_load((WORKFLOWS / "release.yml").read_text())
    rows = workflow["jobs"]["wheels"]["strategy"]["matrix"]["include"]
    platforms = {(row["os"].partition("-")[0], row["arch"]) for row in rows}
    assert platforms == {
        ("ubuntu", "x86_64"),
        ("ubuntu", "aarch64"),
        ("macos", "arm64"),
        ("macos", "x86_64"),
        ("windows", "AMD64"),
    }
    settings = tomllib.loads((cpp.ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert "check_install.py native" in settings["test-command"]
