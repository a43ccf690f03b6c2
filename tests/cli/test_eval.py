"""``kvik eval``: what it refuses, in one line, before anything runs."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from kvik.cli import cli, guarded
from kvik.evaluate.tasks import Task


def test_tasks_are_listed(kvik: Call) -> None:
    assert json.loads(kvik("eval", "--tasks", "--json").out) == {
        name: task.meaning for name, task in Task.registry.items()
    }
    assert len(Task.registry) == 13
    assert all(name in kvik("eval", "--tasks").out for name in Task.registry)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--kv int8 --task nonsense", "there is no task 'nonsense': take one of kl,"),
        ("--task kl", "no recipe was given"),
        ("--kv int9 --task kl", "int9"),
        ("--kv int8 --context 0", "0 is not in the range"),
        ("--kv int8 --depth 1.5", "1.5 is not in the range"),
        ("--kv int8 --depth nan", "not a finite number"),
        ("--kv int8 --context 20 --task needle", "needle at a context of 20: there is no room"),
        ("--kv int8 --context 2000000", "give a longer --text or a smaller --context"),
        ("--kv int8 --text EMPTY", "is empty"),
        ("--kv int8 --text SHORT", "give a longer --text or a smaller --context"),
        ("--kv int8 --text MISSING", "cannot read"),
        ("--kv int8 --out SHORT", "not a folder"),
        ("--kv int8 --samples 0", "0 is not in the range"),
        ("--kv int8 --depth 0.5", "--depth is for needle, needles, induction and changes none"),
        ("--kv int8 --task middle --scored 9", "--scored is for kl, length, stream, drift"),
        (
            "--kv int8 --task needles"
            + " --depth 0.5" * 1
            + "".join(f" --depth 0.{n}" for n in range(10, 40)),
            "at most 24",
        ),
        ("--kv int8 --task middle --context 16777216", "give a smaller --context"),
        ("--kv int8 --ray --workers 0", "0 is not in the range"),
    ],
)
def test_bad_input_is_one_line(
    kvik: Call, tiny_model: Path, tmp_path: Path, words: str, reason: str
) -> None:
    (tmp_path / "EMPTY").write_text(" \n")
    (tmp_path / "SHORT").write_text("A few words.")
    files = ("EMPTY", "SHORT", "MISSING")
    args = [str(tmp_path / w) if w in files else w for w in words.split()]
    done = kvik("eval", str(tiny_model), *args)
    assert done.status == 2
    assert reason in done.line
    assert done.out == ""


def test_all_that_cannot_be_made_is_named_at_once(kvik: Call, tiny_model: Path) -> None:
    words = "--kv int8 --task needle --task induction --context 20 --context 30"
    line = kvik("eval", str(tiny_model), *words.split()).line
    for task in ("needle", "induction"):
        for context in (20, 30):
            assert f"{task} at a context of {context}" in line


def test_a_model_is_asked_for(kvik: Call) -> None:
    done = kvik("eval", "--kv", "int8")
    assert (done.status, done.line) == (
        2, "kvik: MODEL is missing: give a name, a folder or a GGUF file"
    )  # fmt: skip


@pytest.mark.slow
def test_json_is_all_that_is_printed(kvik: Call, tiny_model: Path) -> None:
    words = "--kv int8 --context 200 --scored 16 --workers 1 --json"
    done = kvik("eval", str(tiny_model), *words.split())
    result = json.loads(done.out)
    assert [row["recipe"] for row in result["rows"]] == ["fp32", "int8"]
    assert result["rows"][1]["kl"]["value"] > 0
    assert "{document}" in result["template"]
    assert result["model"] == tiny_model.name


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_files_are_left_where_the_table_cannot_be_printed(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"eval {tiny_model} --kv int8 --context 64 --scored 8 --workers 1 --out {tmp_path}"
    with Path("/dev/full").open("w") as full, contextlib.redirect_stdout(full):
        status = guarded(cli, words.split())
    assert status == 1
    told = capsys.readouterr().err
    assert told.endswith("kvik: cannot write the output: No space left on device\n")
    assert {"eval.json", "eval.html", "figures.csv"} <= {path.name for path in tmp_path.iterdir()}
