"""Sweeps that are killed, torn, refused and resumed; the table is the same in the end."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvik.errors import KvikError
from kvik.evaluate.sweep.cells import Bench, Setup, record
from kvik.evaluate.sweep.local import Workers
from kvik.evaluate.sweep.store import FIXED, SCHEMA, Store
from kvik.evaluate.sweep.sweep import Prepared, Question, Work, Workforce, prepare, run
from kvik.evaluate.tasks import Ask, Unit
from kvik.models import load_model

ASK = Ask(contexts=[300, 400], samples=2, scored=16)
TASKS = ("kl", "induction")


UNIT = Unit("kl", {"context": 9, "sample": 0, "scored": 50})
VALUES = {"kl": [0.5] * 50, "nll": [1.5] * 50, "agree": [1] * 50, "kv_bytes": 64}
SOUND = record(UNIT, "r", False, values=VALUES, seconds=1.0)


def question(model: Path, **changes: Any) -> Question:
    asked: dict[str, Any] = {
        "recipes": ["int8", "sinks:2+window:30"],
        "tasks": list(TASKS),
        "ask": ASK,
        "workers": 1,
    }
    return Question(str(model), **asked | changes)


def command(model: Path, out: Path, *more: str) -> list[str]:
    words = (
        f"eval {model} --kv int8 --kv sinks:2+window:30 --task kl --task induction --context 300 "
        f"--context 400 --samples 2 --scored 16 --workers 1 --out {out}"
    )
    return [sys.executable, "-m", "kvik", *words.split(), *more]


@contextmanager
def alone(prepared: Prepared) -> Iterator[Work]:
    """No processes, for where they are not what is tested."""
    bench = Bench(prepared.setup)
    yield lambda jobs: (found for job in jobs for found in bench.work(job))


def answer(
    model: Path, out: Path | None, workers: Workforce = alone, **changes: Any
) -> dict[str, Any]:
    prepared = prepare(question(model, **changes))
    store = Store(out and out / "results.jsonl", prepared.header)
    return run(prepared, store, lambda found: None, workers)


@pytest.fixture(scope="module")
def whole(tiny_model: Path) -> dict[str, Any]:
    """The sweep without any trouble."""
    return answer(tiny_model, None)


def test_every_cell_is_there_and_the_recipes_differ(whole: dict[str, Any]) -> None:
    rows = whole["rows"]
    assert [(r["task"], r["context"]) for r in rows[::3]] == [
        ("kl", 300), ("kl", 400), ("induction", 300), ("induction", 400),
    ]  # fmt: skip
    kl = [row["kl"]["value"] for row in rows if row["task"] == "kl"]
    assert kl[0] == 0 < kl[1] < kl[2]
    assert whole["failed"] == []
    assert all(row["noise"] < 1e-6 < kl[1] for row in rows if row["task"] == "kl")


@pytest.mark.slow
def test_a_killed_sweep_goes_on_and_ends_with_the_same_table(
    tiny_model: Path, tmp_path: Path, whole: dict[str, Any]
) -> None:
    kept = tmp_path / "results.jsonl"
    process = subprocess.Popen(
        command(tiny_model, tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + 120
    while not (kept.exists() and kept.read_bytes().count(b"\n") > 4):
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children()
    process.kill()
    process.wait()
    _gone, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive, "workers end with the one that started them"
    before = kept.read_text().splitlines()
    again = answer(tiny_model, tmp_path)
    assert again["rows"] == whole["rows"]
    after = kept.read_text().splitlines()
    assert after[: len(before)] == before, "finished cells were kept, not measured again"
    keys = [(r["unit"], r["recipe"], r["repeat"]) for r in map(json.loads, after[1:])]
    assert len(keys) == len(set(keys)) == 2 * 2 * 2 * 3 + 2


@pytest.mark.slow
def test_an_interrupted_sweep_says_so_and_leaves_whole_lines(
    tiny_model: Path, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        command(tiny_model, tmp_path), stderr=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL
    )
    kept, end = tmp_path / "results.jsonl", time.monotonic() + 120
    while not (kept.exists() and kept.read_bytes().count(b"\n") > 2):
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip().endswith("kvik: interrupted")
    assert kept.read_bytes().endswith(b"\n")
    assert not (tmp_path / "eval.json").exists()


def test_a_torn_line_is_dropped_and_measured_again(
    tiny_model: Path, tmp_path: Path, whole: dict[str, Any]
) -> None:
    answer(tiny_model, tmp_path)
    kept = tmp_path / "results.jsonl"
    data = kept.read_bytes()
    kept.write_bytes(data[:-20])
    assert answer(tiny_model, tmp_path)["rows"] == whole["rows"]
    assert sorted(kept.read_text().splitlines())[:3] == sorted(data.decode().splitlines())[:3]


def test_more_recipes_and_contexts_only_add(tiny_model: Path, tmp_path: Path) -> None:
    answer(tiny_model, tmp_path, recipes=["int8"], tasks=["kl"], ask=Ask([300], 1, None, 16))
    before = (tmp_path / "results.jsonl").read_text()
    more = answer(tiny_model, tmp_path, tasks=["kl"])
    assert (tmp_path / "results.jsonl").read_text().startswith(before)
    alone = answer(tiny_model, None, tasks=["kl"])
    assert more["rows"] == alone["rows"]


def test_a_shorter_context_added_later_is_where_the_noise_is_of(
    tiny_model: Path, tmp_path: Path
) -> None:
    answer(tiny_model, tmp_path, tasks=["kl", "needle"], ask=Ask([700], 1, [0.5], 16))
    added = answer(tiny_model, tmp_path, tasks=["kl", "needle"], ask=Ask([400, 700], 1, [0.5], 16))
    fresh = answer(tiny_model, None, tasks=["kl", "needle"], ask=Ask([400, 700], 1, [0.5], 16))
    assert added["rows"] == fresh["rows"]


DEEP = b'{"task": ' + b"[" * 100_000 + b"\n"


@pytest.mark.parametrize("damage", [b"{]\n", b"\xff\xfe\n", b"[1]\n", DEEP])
def test_a_damaged_line_in_the_middle_is_refused(
    tiny_model: Path, tmp_path: Path, damage: bytes
) -> None:
    prepared = prepare(question(tiny_model))
    path = tmp_path / "results.jsonl"
    store = Store(path, prepared.header)
    store.add(SOUND)
    head, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(head + b"\n" + damage + rest)
    with pytest.raises(KvikError, match="line 2 is damaged"):
        Store(path, prepared.header)


def test_a_damaged_header_is_not_to_be_removed(tmp_path: Path) -> None:
    path, header = tmp_path / "results.jsonl", {n: 0 for n in FIXED}
    header["schema"] = SCHEMA
    Store(path, header).add(SOUND)
    head, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(head[:-5] + b"\n" + rest)
    with pytest.raises(KvikError, match="line 1 is damaged: it says what was asked"):
        Store(path, header)


def test_what_a_folder_was_asked_is_named(tiny_model: Path, tmp_path: Path) -> None:
    answer(tiny_model, tmp_path, recipes=["int8"], tasks=["kl"], ask=Ask([300], 1, None, 16))
    early = prepare(question(tiny_model, recipes=["int8"], tasks=["kl"], early=True))
    with pytest.raises(KvikError, match="another choice of --early"):
        Store(tmp_path / "results.jsonl", early.header)


def test_a_sweep_loads_the_model_for_its_longest_text(tiny_model: Path, tmp_path: Path) -> None:
    """LongRoPE has other factors for short texts; who goes on with long ones is told."""
    folder = shutil.copytree(tiny_model, tmp_path / "long")
    config = json.loads((folder / "config.json").read_text())
    config["original_max_position_embeddings"] = 800
    config["rope_scaling"] = {
        "rope_type": "longrope",
        "long_factor": [4.0] * 16,
        "short_factor": [1.0] * 16,
    }
    (folder / "config.json").write_text(json.dumps(config))
    short, long = (
        prepare(question(folder, tasks=["kl"], ask=Ask([context], 1, None, 16)))
        for context in (300, 1000)
    )
    assert short.setup.identity == load_model(folder, context=800).identity.hex()
    assert long.setup.identity == load_model(folder).identity.hex()
    assert short.setup.identity != long.setup.identity
    Bench(short.setup)  # which refuses another model than was asked for
    Bench(long.setup)


UNSOUND = {
    "no recipe": {"recipe": None},
    "no values": {"values": {}},
    "words": {"values": {**VALUES, "kl": ["a"] * 50}},
    "short": {"values": {**VALUES, "kl": [0.5] * 5}},
    "NaN": {"values": {**VALUES, "nll": [math.nan] * 50}},
    "no bytes": {"values": {**VALUES, "kv_bytes": None}},
    "another unit": {"where": {"context": 8, "sample": 0, "scored": 50}},
    "another task": {"task": "nonsense"},
    "negative bytes": {"values": {**VALUES, "kv_bytes": -5}},
    "more bytes than there are": {"values": {**VALUES, "kv_bytes": 10**30}},
    "negative KL": {"values": {**VALUES, "kl": [-0.5] * 50}},
    "half an agreement": {"values": {**VALUES, "agree": [0.5] * 50}},
    "no items": {"task": "needle", "unit": Unit("needle", UNIT.where).key},
}
HIDDEN = Unit("needle", {"context": 9, "sample": 0, "depths": [0.3, 0.9]})
ITEMS = [{"at": at, "logp": -1.0, "hit": 1.0, "floor": -9.0} for at in (0.3, 0.9)]
UNSOUND_ITEMS = {
    "no item": [],
    "one is missing": ITEMS[:1],
    "another depth": [{**ITEMS[0], "at": 0.9}, ITEMS[1]],
    "seven hits": [{**ITEMS[0], "hit": 7}, ITEMS[1]],
    "a probability over 1": [{**ITEMS[0], "logp": 5.0}, ITEMS[1]],
    "a probability of nothing": [{**ITEMS[0], "floor": -1e308}, ITEMS[1]],
}


@pytest.mark.parametrize("items", UNSOUND_ITEMS.values(), ids=UNSOUND_ITEMS)
def test_answers_that_cannot_be_are_refused(tmp_path: Path, items: list[Any]) -> None:
    header = {name: 0 for name in FIXED}
    store = Store(tmp_path / "results.jsonl", header)
    store.add(record(HIDDEN, "fp32", False, values={"items": items, "kv_bytes": 64}))
    with pytest.raises(KvikError, match="line 2 is damaged"):
        Store(tmp_path / "results.jsonl", header)


def test_recipes_that_answer_other_questions_are_refused(tmp_path: Path) -> None:
    """Where the unit does not say how many answers there are, its records have to agree."""
    header, unit = {name: 0 for name in FIXED}, Unit("middle", {"context": 9, "sample": 0})
    store = Store(tmp_path / "results.jsonl", header)
    for recipe, items in (("fp32", ITEMS), ("int8", ITEMS[:1])):
        store.add(record(unit, recipe, False, values={"items": items, "kv_bytes": 64}))
    with pytest.raises(KvikError, match="line 3 is damaged"):
        Store(tmp_path / "results.jsonl", header)


@pytest.mark.parametrize("change", UNSOUND.values(), ids=UNSOUND)
def test_a_record_that_is_not_whole_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path, header = tmp_path / "results.jsonl", {n: 0 for n in FIXED}
    Store(path, header).add(SOUND)
    assert Store(path, header).done
    with path.open("a") as file:
        file.write(json.dumps({**SOUND, **change}) + "\n")
        file.write(json.dumps(SOUND) + "\n")
    with pytest.raises(KvikError, match="line 3 is damaged"):
        Store(path, header)


@pytest.mark.parametrize(
    "text", ["my only notes, one line", '{"mine": 1, ', "notes\nmore\n", "[]\n"]
)
def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(text)
    with pytest.raises(KvikError, match=r"is no file of kvik eval|another"):
        Store(path, {n: 0 for n in FIXED})
    assert path.read_text() == text


@pytest.mark.parametrize("begun", ["", '{"sch', '{"schema": "kvik eval 1", "model": "x'])
def test_a_header_that_was_cut_off_is_written_again(tmp_path: Path, begun: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(begun)
    Store(path, {n: 0 for n in FIXED}).add(SOUND)
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize("change", [{"seed": 1}, {"early": True}, {"text": "other"}])
def test_results_of_another_question_are_refused(
    tiny_model: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    if "text" in change:
        change = {"text": str(tmp_path / "other.txt")}
        Path(change["text"]).write_text("Some other text of its own. " * 200)
    Store(tmp_path / "results.jsonl", prepare(question(tiny_model)).header)
    other = prepare(question(tiny_model, **change))
    with pytest.raises(KvikError, match="holds results of another"):
        Store(tmp_path / "results.jsonl", other.header)


def test_a_full_disk_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    """The limit on a file's size stands for the disk's: writing beyond it fails half-way."""
    header = {n: 0 for n in FIXED}
    store = Store(tmp_path / "results.jsonl", header)
    store.add(SOUND)
    before = (tmp_path / "results.jsonl").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, hard))
    try:
        with pytest.raises(KvikError, match=r"cannot write .*what was measured before is kept"):
            store.add({**SOUND, "recipe": "s"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "results.jsonl").read_bytes() == before
    again = Store(tmp_path / "results.jsonl", header)
    assert list(again.done) == [(UNIT.key, "r", False)]
    again.add({**SOUND, "recipe": "s"})
    assert len(Store(tmp_path / "results.jsonl", header).done) == 2


def test_a_worker_that_dies_costs_one_cell(tiny_model: Path, whole: dict[str, Any]) -> None:
    prepared = prepare(question(tiny_model))
    store = Store(None, prepared.header)
    killed = False
    with Workers(prepared.setup, 1) as workers:
        for found in workers.run(prepared.jobs(store)):
            store.add(found)
            if not killed:
                children = psutil.Process().children()
                (child,) = (c for c in children if "kvik.evaluate.sweep.worker" in c.cmdline())
                os.kill(child.pid, signal.SIGKILL)
                killed = True
    # Between one record and the next the worker may have been a cell ahead.
    assert len(store.failed) == 1
    assert "want of memory" in next(iter(store.failed.values()))["error"]
    assert run(prepared, store, lambda found: None)["rows"] == whole["rows"]


def test_a_model_that_is_another_one_elsewhere_is_refused(tiny_model: Path) -> None:
    prepared = prepare(question(tiny_model))
    setup = Setup(**{**prepared.setup.__dict__, "identity": "00"})
    with (
        Workers(setup, 1) as workers,
        pytest.raises(KvikError, match="is another model here"),
    ):
        list(workers.run(prepared.jobs(Store(None, prepared.header))))


def test_recipes_that_need_no_trace_are_spread_over_workers(tiny_model: Path) -> None:
    """One long context is work for every core; what needs the dense logits stays together."""
    prepared = prepare(question(tiny_model, ask=Ask(contexts=[300], samples=1, scored=16)))
    jobs = prepared.jobs(Store(None, prepared.header))
    sizes = {task: [len(j.cells()) for j in jobs if j.unit.task == task] for task in TASKS}
    assert sizes == {"kl": [4], "induction": [1, 1, 1, 1]}
    first = next(job for job in jobs if job.unit.task == "induction")
    assert first.cells() == [("fp32", False)]


def test_two_workers_give_the_same_numbers(tiny_model: Path, whole: dict[str, Any]) -> None:
    prepared = replace(prepare(question(tiny_model)), workers=2)
    found = run(prepared, Store(None, prepared.header), lambda found: None)
    assert found["rows"] == whole["rows"]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A Ray cluster of this machine as `ray start` brings it up; its address."""
    pytest.importorskip("ray")
    ray = str(Path(sys.executable).parent / "ray")
    first, second, third = ports(3)
    words = (
        f"start --head --num-cpus=2 --port={first} --dashboard-agent-grpc-port={second} "
        f"--dashboard-agent-listen-port={third} --include-dashboard=false --disable-usage-stats"
    )
    subprocess.run([ray, *words.split()], check=True, capture_output=True, timeout=300, env=RAY)
    yield f"127.0.0.1:{first}"
    subprocess.run([ray, "stop", "--force"], capture_output=True, timeout=120)


RAY = {**os.environ, "RAY_AUTH_MODE": "disabled"}


def ports(count: int) -> list[int]:
    """Ports that nobody listens on, beyond those that Ray gives its workers."""
    found: list[int] = []
    for port in range(21_000 + os.getpid() % 5_000, 32_000):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)):
                found.append(port)
        if len(found) == count:
            break
    return found


@pytest.mark.slow
def test_a_ray_cluster_of_two_workers_gives_the_same_numbers(
    tiny_model: Path, tmp_path: Path, whole: dict[str, Any], cluster: str
) -> None:
    """In a process of its own: Ray keeps threads and handlers that other tests would meet."""
    words = [w if w != "1" else "2" for w in command(tiny_model, tmp_path)]
    words += ["--ray", cluster, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=500, env=RAY)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == whole["rows"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "localhost:", "127.0.0.1:99999999"])
def test_a_cluster_that_is_not_there_is_told_at_once(tiny_model: Path, address: str) -> None:
    pytest.importorskip("ray")
    prepared = prepare(question(tiny_model, ray=address))
    start = time.monotonic()
    with pytest.raises(KvikError, match=r"no Ray cluster at|is no address"):
        run(prepared, Store(None, prepared.header), lambda found: None)
    assert time.monotonic() - start < 60
