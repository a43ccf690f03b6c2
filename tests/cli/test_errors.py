"""Whatever is wrong ends in one clear line and the right exit status, never in a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from kvik.cli import guarded
from kvik.engine import session
from kvik.errors import KvikError, ModelError
from kvik.evaluate import text
from kvik.evaluate.compare import prepare
from kvik.models import sources

from .conftest import Call

RUN = ("run", "MODEL", "hello", "--max-new", "1")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("run", "MODEL", "hi", "--kv", "int8+nonsense:3"), ["column 6", "nonsense"]),
        (("run", "MODEL", "hi", "--kv", "int8+int4"), ["int8", "int4"]),
        (("run", "MODEL", "hi", "--kv", ""), ["kvik:"]),
        (("run", "MODEL", ""), ["the prompt is empty"]),
        (("run", "MODEL", "  \n "), ["the prompt is empty"]),
        (("run", "MODEL", "caf\udce9"), ["not UTF-8"]),
        (("run", "MODEL", "hi", "--stop", ""), ["--stop is empty"]),
        (("run", "MODEL", "hi", "--file", "x"), ["both"]),
        (("run", "MODEL", "--file", "no-such-file"), ["no-such-file"]),
        (("run", "MODEL", "hi", "--max-new", "0"), ["--max-new"]),
        (("run", "MODEL", "hi", "--temperature", "nan"), ["temperature"]),
        (("run", "MODEL", "hi", "--top-p", "2"), ["--top-p"]),
        (("run", "MODEL", "hi", "--top-p", "0.0"), ["--top-p", "0.0<x<=1.0"]),
        (("run", "MODEL", "hi", "--kv", "int8", "--kv", "int4"), ["--kv is given more than once"]),
        (("compare", "MODEL", "--kv", "int8", "--out", "a", "--out", "b"), ["--out is given more"]),
        (("run", "MODEL", "hi", "--seed", "-1"), ["seed"]),
        (("run", "smollm2-135n", "hi"), ["smollm2-135m"]),
        (("run", "missing.gguf", "hi"), ["missing.gguf"]),
        (("run",), ["MODEL"]),
        (("compare", "MODEL"), ["--kv"]),
        (("compare", "MODEL", "--kv", "int8", "--text", "no-such-file"), ["no-such-file"]),
        (("compare", "MODEL", "--kv", "int8", "--context", "0"), ["--context"]),
        (("compare", "MODEL", "--kv", "int8", "--context", "99999999"), ["tokens", "are needed"]),
        (("models", "get", "nothing"), ["nothing"]),
        (("models", "get"), ["NAME"]),
        (("inspekt",), ["inspekt"]),
        (("run", "--no-such-option"), ["no-such-option"]),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    kvik: Call, tiny_model: Path, args: tuple[str, ...], words: list[str]
) -> None:
    done = kvik(*[str(tiny_model) if arg == "MODEL" else arg for arg in args])
    assert done.status == 2
    assert done.out == ""
    assert done.line.startswith("kvik: ")
    for word in words:
        assert word in done.line


def test_all_bad_recipes_are_listed_before_anything_runs(kvik: Call, tiny_model: Path) -> None:
    done = kvik("compare", str(tiny_model), "--kv", "int9", "--kv", "fp16", "--kv", "windw:4")
    assert done.status == 2
    assert "int9" in done.line
    assert "windw" in done.line
    assert "fp16" not in done.line.split(":")[1]


@pytest.mark.parametrize("content", [b"caf\xe9 au lait", b"\xff\xfe\x00"])
def test_text_that_is_not_utf8(
    kvik: Call, tiny_model: Path, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "text"
    file.write_bytes(content)
    model, out = str(tiny_model), tmp_path / "out"
    for done in (
        kvik("run", model, stdin=content),
        kvik("run", model, "--file", str(file)),
        kvik("compare", model, "--kv", "int8", "--text", str(file), "--out", str(out)),
    ):
        assert done.status == 2
        assert "not UTF-8" in done.line
    assert not out.exists()


def test_empty_standard_input(kvik: Call, tiny_model: Path) -> None:
    done = kvik("run", str(tiny_model), stdin=b"")
    assert (done.status, done.out) == (2, "")
    assert "standard input is empty" in done.line


def test_a_cache_that_does_not_fit_is_said_before_it_starts(kvik: Call, tiny_model: Path) -> None:
    done = kvik("run", str(tiny_model), "hi", "--kv", "fp32", "--max-new", "200000000")
    assert (done.status, done.out) == (2, "")
    assert "needs" in done.err.splitlines()[-1]
    assert "available" in done.err.splitlines()[-1]


def test_system_message_without_a_template(kvik: Call, tiny_base_model: Path) -> None:
    done = kvik("run", str(tiny_base_model), "hi", "--system", "Be brief.")
    assert done.status == 2
    assert "chat template" in done.line


def test_output_folder_that_is_a_file(kvik: Call, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = kvik("compare", str(tiny_model), "--kv", "int8", "--out", str(tmp_path / "file"))
    assert done.status == 2
    assert "not a folder" in done.line
    assert (tmp_path / "file").read_text() == "mine"


def _failing(error: BaseException) -> click.Command:
    def fail() -> None:
        raise error

    return click.Command("fail", callback=fail)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (KvikError("two\nlines \x1b[31mred"), 2, "kvik: two lines \\x1b[31mred"),
        (KeyboardInterrupt(), 130, "kvik: interrupted"),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch"),
            2,
            "kvik: torch is not installed: pip install 'kvik[run]'",
        ),
        (
            ZeroDivisionError("division by zero"),
            1,
            "kvik: this is a bug (ZeroDivisionError: division by zero); "
            "KVIK_DEBUG=1 shows where it happened",
        ),
    ],
)
def test_every_exception_has_its_line_and_status(
    capsys: pytest.CaptureFixture[str], error: BaseException, status: int, line: str
) -> None:
    assert guarded(_failing(error), []) == status
    assert capsys.readouterr().err.strip() == line


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVIK_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        guarded(_failing(ZeroDivisionError()), [])


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kvik", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, b"")


@pytest.mark.parametrize(
    "verb", [(), ("models",), ("models", "get"), ("run",), ("compare",), ("doctor",)]
)
def test_help_shows_examples_and_json(kvik: Call, verb: tuple[str, ...]) -> None:
    done = kvik(*verb, "--help")
    assert (done.status, done.err) == (0, "")
    assert "Examples:\n  kvik " in done.out
    assert verb == () or "--json" in done.out


def test_no_verb_shows_help(kvik: Call) -> None:
    assert kvik() == kvik("--help")


def test_a_prompt_without_end_is_refused(
    kvik: Call, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "MAX_BYTES", 1 << 20)
    large = tmp_path / "large"
    large.write_bytes(b"x" * ((1 << 20) + 1))
    model = str(tiny_model)
    for done in (
        kvik("run", model, "--file", str(large)),
        kvik("run", model, stdin=large.read_bytes()),
        kvik("compare", model, "--kv", "int8", "--text", str(large)),
    ):
        assert (done.status, done.out) == (2, "")
        assert "too large: at most 1 MiB" in done.line


@pytest.mark.parametrize("option", [("run", "--file"), ("compare", "--kv", "int8", "--text")])
def test_a_device_is_no_text(kvik: Call, tiny_model: Path, option: tuple[str, ...]) -> None:
    verb, *rest = option
    done = kvik(verb, str(tiny_model), *rest, "/dev/zero")
    assert done.status == 2
    assert "not a regular file" in done.line


def test_a_pipe_may_stand_for_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("hello",))
    writer.start()
    assert text.read_text(tmp_path / "pipe") == "hello"
    writer.join()


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("run", "MODEL", "hi", "--kv", "int9"), "int9"),
        (("run", "MODEL", "hi", "--kv", "int8+int4"), "int4"),
        (("run", "smollm2-135m", "hi", "--kv", "int9"), "int9"),
        (("run", "nosuch", "hi"), "nosuch"),
        (("compare", "MODEL", "--kv", "int9"), "int9"),
        (("compare", "smollm2-135m", "--kv", "int9"), "int9"),
        (("compare", "nosuch", "--kv", "int8"), "nosuch"),
    ],
)
def test_recipes_and_names_are_judged_without_torch(
    tiny_model: Path, tmp_path: Path, args: tuple[str, ...], word: str
) -> None:
    # As it is with the base dependencies alone: none of these can be imported.
    extra = ("torch", "gguf", "huggingface_hub", "jinja2", "matplotlib", "safetensors")
    script = f"""
import sys
sys.modules.update(dict.fromkeys({(*extra, "threadpoolctl", "tokenizers")!r}))
from kvik.cli import main
main()
"""
    words = [str(tiny_model) if arg == "MODEL" else arg for arg in args]
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        env={**os.environ, "KVIK_HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert word in done.stderr
    assert done.stderr.count("\n") == 1
    assert "not installed" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["eval", "--tasks", "--json"], ["plan", "llama-3-8b", "--json"]])
def test_output_that_cannot_be_written_is_told_and_is_no_bug(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvik", *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "kvik: cannot write the output: No space left on device\n"


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
@pytest.mark.parametrize("words", ["plan llama-3-8b", "run {model} hi --max-new 2"])
def test_standard_output_that_was_closed_is_no_bug(words: str, tiny_model: Path) -> None:
    line = f"{sys.executable} -m kvik {words.format(model=tiny_model)}"
    done = subprocess.run(["sh", "-c", f"{line} >&-"], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0
    assert "bug" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
def test_errors_of_a_closed_standard_error_go_nowhere_else() -> None:
    line = f"{sys.executable} -m kvik plan no-such-model"
    done = subprocess.run(["sh", "-c", f"{line} 2>&-"], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (2, "")


def test_an_empty_baseline(kvik: Call, tiny_model: Path) -> None:
    done = kvik("compare", str(tiny_model), "--kv", "int8", "--baseline", "")
    assert done.status == 2
    assert "--baseline is empty" in done.line


def test_empty_output_folder(kvik: Call, tiny_model: Path) -> None:
    done = kvik("compare", str(tiny_model), "--kv", "int8", "--out", "")
    assert done.status == 2
    assert "--out is empty" in done.line


def test_comparison_that_does_not_fit_is_said_before_it_starts(
    kvik: Call, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--kv", "int8", "--kv", "fp16", "--kv", "sinks:4+window:60", "--context", "600")
    monkeypatch.setattr(session, "available_memory", lambda: 200_000)
    done = kvik("compare", str(tiny_model), *options)
    assert (done.status, done.out) == (2, "")
    assert [word in done.line for word in ("fp32", "fp16", "window")] == [True, True, False]


def test_comparison_without_room_for_its_logits(
    kvik: Call, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=9))
    done = kvik("compare", str(tiny_model), "--kv", "int8", "--context", "64")
    assert done.status == 2
    assert "are free: take fewer --offsets" in done.line


def test_a_number_of_thousands_of_digits(kvik: Call, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": ' + "9" * 5000 + "}")
    done = kvik("run", str(tmp_path), "hi")
    assert done.status == 2
    assert "config.json: holds a number with too many digits" in done.line
    assert "sys." not in done.line


def test_a_comparison_tells_of_its_download(
    kvik: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(model: sources.BuiltIn, target: Path, progress: sources.Progress) -> None:
        progress(f"fetching {model.name}", 0, model.size)
        raise ModelError("no network")

    monkeypatch.setenv("KVIK_HOME", str(tmp_path))
    monkeypatch.setattr(sources, "fetch", fetch)
    done = kvik("compare", "smollm2-135m", "--kv", "int8")
    assert done.err.splitlines() == ["fetching smollm2-135m", "kvik: no network"]


def test_warnings_name_the_model_as_it_was_typed(
    kvik: Call, tiny_base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_base_model.parent)
    done = kvik("run", "base", "x" * 250, "--max-new", "8")
    assert done.err.splitlines()[0].endswith("are beyond the 256 that base was trained on")
    prepared = prepare("base", ["int8"], context=64)
    assert prepared.warnings[0].endswith("are beyond the 256 that base was trained on")
