"""A comparison from end to end on a tiny model, and the protocol against single steps."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvik.engine.session import Session
from kvik.errors import KvikError
from kvik.evaluate import growth, quality
from kvik.evaluate.charts import draw
from kvik.evaluate.compare import (
    DETAILS,
    FIGURES,
    in_process_of_its_own,
    prepare,
    run,
)
from kvik.evaluate.metrics import score
from kvik.evaluate.needle import Asked, ask, make_needles, room
from kvik.evaluate.tasks.spelling import Spelling
from kvik.evaluate.text import library_text
from kvik.evaluate.worker import Task
from kvik.models import load_model
from kvik.models.tokenizer import Tokenizer
from kvik.recipe import Recipe
from kvik.spec import load_spec

from .conftest import RECIPES, Heard, here


@pytest.mark.parametrize("recipe", ["int8", "fp32+sinks:4+window:60", "none"])
def test_chunks_equal_single_steps(tiny_model: Path, recipe: str) -> None:
    model = load_model(tiny_model)
    ids = model.tokenizer.encode(library_text()[:400], bos=False)[: quality.Window.length(150, 70)]
    window = quality.Window(ids, 150)
    assert window.rows == 70

    def logits(chunk: int) -> np.ndarray[Any, Any]:
        session = Session(model, recipe, max_tokens=300)
        quality.prefill(session, window, lambda n: None)
        return np.concatenate([rows for _, rows in quality.forced_logits(session, window, chunk)])

    steps = Session(model, recipe, max_tokens=300)
    singles = [steps.feed([token])[0].numpy() for token in ids[:-1]][150:]
    for ours in (singles, logits(1)):
        if recipe == "int8":
            # float32 products of one row and of many round differently and can tip a code over:
            # the logits move by thousandths, what is measured does not.
            targets = np.asarray(ids[151:])
            assert score(logits(32), np.stack(ours), targets).kl.mean() < 1e-6
        else:
            np.testing.assert_allclose(logits(32), ours, atol=1e-4)


def test_comparison_has_the_agreed_keys_and_exact_bytes(measured: dict[str, Any]) -> None:
    assert list(measured)[:4] == ["model", "context", "env", "results"]
    assert [r["recipe"] for r in measured["results"]] == list(RECIPES)
    for result in measured["results"]:
        assert list(result) == ["recipe", *FIGURES, *DETAILS]
        assert result["planned_bytes"] == result["measured_bytes"]
        assert result["bytes_per_token"] == result["measured_bytes"] / 500
        assert result["needle_total"] == len(result["needle_cells"]) == 10
        assert min(result["prefill_tok_s"], result["decode_tok_s"], result["peak_rss_bytes"]) > 0
    full, int8, window, *_ = measured["results"]
    assert (full["kl_mean"], full["top1"]) == (0.0, 1.0)
    assert 0 < int8["kl_mean"] < window["kl_mean"]
    assert int8["measured_bytes"] < 0.55 * full["measured_bytes"]
    assert {"cpu", "cores", "memory_bytes", "python", "torch", "kvik", "threads"} <= set(
        measured["env"]
    )
    assert json.loads(json.dumps(measured, allow_nan=False)) == measured


def test_what_was_measured_is_recorded(measured: dict[str, Any], tiny_model: Path) -> None:
    weights = (tiny_model / "model.safetensors").read_bytes()
    assert measured["model_sha256"] == hashlib.sha256(weights).hexdigest()
    prose = hashlib.sha256(library_text().encode()).hexdigest()
    assert measured["text"] == {"name": "built-in (pydoc_data.topics)", "sha256": prose}
    assert measured["quality"] == {"offsets": 1, "scored": 512}
    assert measured["speed"]["contexts"] == [125, 250, 500]
    needle = measured["needle"]
    assert "secret number of the lighthouse is {number}." in needle["prompt"]
    assert needle["prompt"].startswith("<|im_start|>user")
    # A quarter of the context is too short for a prompt of these tokens.
    assert {cell["length"] for cell in needle["cells"]} == {250, 500}
    assert {cell["depth"] for cell in needle["cells"]} == {0.1, 0.3, 0.5, 0.7, 0.9}


def test_a_cell_counts_where_the_full_cache_hits(measured: dict[str, Any]) -> None:
    full = measured["results"][0]
    assert measured["needle"]["counted"] == [cell["hit"] for cell in full["needle_cells"]]


def test_planned_growth_meets_what_is_measured(measured: dict[str, Any], tiny_model: Path) -> None:
    spec, at = load_spec(tiny_model), measured["growth"]["contexts"]
    for result in measured["results"]:
        plan = Recipe.parse(result["recipe"]).resolve(spec)
        assert len(result["growth_bytes"]) == len(at)
        at_context = growth.growth(plan, [measured["context"]])
        assert at_context == [result["measured_bytes"]]
        crossing = result["outgrows_weights_at"]
        if "window" in result["recipe"]:
            assert crossing is None
        else:
            before, after = growth.growth(plan, [crossing - 1, crossing])
            assert before <= measured["weights_bytes"] < after


def test_layers_and_tables_are_all_that_is_held(measured: dict[str, Any]) -> None:
    for result in measured["results"]:
        parts = sum(result["layer_bytes"]) + result["table_bytes"]
        assert parts == result["measured_bytes"]


def test_reference_runs_first_and_is_left_out_unless_asked_for(tiny_base_model: Path) -> None:
    prepared = prepare(str(tiny_base_model), ["fp16", "none"], context=64, offsets=2)
    assert len(prepared.windows) == 2
    assert any("beyond the 256" in warning for warning in prepared.warnings)
    assert any("too short for the needle test" in warning for warning in prepared.warnings)
    heard = Heard()
    found = run(prepared, heard, launch=here, threads=1)
    assert heard.recipes == ["fp32", "fp16", "none"]
    assert [r["recipe"] for r in found["results"]] == ["fp16", "none"]
    assert found["results"][0]["needle_total"] == 0
    # A cache of nothing, and no needle: pictures all the same.
    assert [chart.picture.name for chart in draw(found)] == ["memory", "quality", "speed", "layers"]
    nothing = found["results"][1]
    assert nothing["measured_bytes"] == sum(nothing["layer_bytes"]) == 0
    assert (nothing["kept"], nothing["outgrows_weights_at"]) == ([], None)


def test_a_failing_recipe_is_reported_and_the_others_go_on(tiny_base_model: Path) -> None:
    prepared = prepare(str(tiny_base_model), ["int8", "fp16"], context=32)

    def launch(task: Task, folder: Path, progress: Any) -> dict[str, Any]:
        if task.recipe == "int8":
            return {"recipe": "int8", "error": "no luck"}
        return here(task, folder, progress)

    failed, fine = run(prepared, Heard(), launch=launch, threads=1)["results"]
    assert failed["error"] == "no luck"
    assert failed["kl_mean"] is None
    assert math.isfinite(fine["kl_mean"])


def noise(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(library_text(), bos=False, special=False)


@pytest.mark.parametrize("recipe", ["fp32", "none", "fp32+sinks:4+window:60"])
def test_a_needle_is_as_likely_as_the_model_says(tiny_model: Path, recipe: str) -> None:
    model = load_model(tiny_model)
    tokenizer = model.tokenizer
    needle = make_needles(Spelling(tokenizer), noise(tokenizer), 300)[0]
    session = Session(model, recipe, max_tokens=room(needle))
    asked = ask(session, tokenizer, needle)
    logits = Session(model, recipe, max_tokens=400).feed(needle.ids + needle.answer, logits="all")
    rows = logits.double().log_softmax(-1)[len(needle.ids) - 1 : -1]
    likely = sum(float(row[token]) for row, token in zip(rows, needle.answer, strict=True))
    assert asked.logprob == pytest.approx(likely, abs=1e-3)
    assert not asked.hit


@pytest.mark.slow
@pytest.mark.model
def test_a_needle_outside_the_window_is_lost() -> None:
    """The map's negative control: the cache is without the fact, and the map shows it."""
    model = load_model("smollm2-135m")
    spelling = Spelling(model.tokenizer)
    needles = make_needles(spelling, noise(model.tokenizer), 256, depths=(0.1, 0.5))

    def asked(recipe: str) -> list[Asked]:
        sessions = [Session(model, recipe, max_tokens=room(needle)) for needle in needles]
        return [ask(s, model.tokenizer, n) for s, n in zip(sessions, needles, strict=True)]

    full, window = asked("fp32"), asked("sinks:4+window:60")
    assert all(one.hit for one in full)
    assert not any(one.hit for one in window)
    assert all(a.logprob > b.logprob + 3 for a, b in zip(full, window, strict=True))


def test_short_text_is_refused(tiny_base_model: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("too short")
    with pytest.raises(KvikError, match=r"has 9 tokens, 545 are needed"):
        prepare(str(tiny_base_model), ["int8"], context=32, text=tmp_path / "text")


def test_needles_are_where_they_should_be(tiny_model: Path) -> None:
    tokenizer = Tokenizer.from_path(tiny_model)
    for needle in make_needles(Spelling(tokenizer), noise(tokenizer), 900):
        assert tokenizer.decode(needle.answer) == f" {needle.number}"
        text = tokenizer.decode(needle.ids, skip_special=False)
        assert 850 < len(needle.ids) <= 900
        assert text.count(needle.number) == 1
        assert abs(text.index(needle.number) / len(text) - needle.depth) < 0.2
        assert text.endswith("<|im_start|>assistant\nThe secret number of the lighthouse is")


@pytest.mark.slow
def test_each_recipe_has_a_process_of_its_own(tiny_base_model: Path, tmp_path: Path) -> None:
    prepared = prepare(str(tiny_base_model), ["fp32"], context=32)
    found = run(prepared, Heard(), launch=in_process_of_its_own, threads=1)["results"][0]
    assert "error" not in found
    assert found["planned_bytes"] == found["measured_bytes"]


@pytest.mark.slow
def test_a_crashed_worker_gives_its_last_words(tmp_path: Path) -> None:
    task = Task("missing.gguf", "fp32", 8, "none.npy", str(tmp_path), True, [], 1)
    found = in_process_of_its_own(task, tmp_path, Heard())
    assert "missing.gguf" in found["error"]


@pytest.mark.slow
def test_the_command_leaves_both_files(tiny_base_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    options = ["--kv", "int8", "--context", "64", "--json", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "kvik", "compare", str(tiny_base_model), *options],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == json.loads((out / "compare.json").read_text())
    tables = ["curves.csv", "figures.csv", "needles.csv"]
    drawn = ["layers.png", "memory.png", "quality.png", "speed.png"]
    names = sorted(["compare.json", "report.html", *tables, *drawn])
    assert sorted(p.name for p in out.iterdir()) == names
    assert "<code>int8</code>" in (out / "report.html").read_text()


@pytest.mark.slow
def test_figures_are_not_lost_when_they_cannot_be_written(
    tiny_base_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "compare.json").mkdir()
    options = ["--kv", "fp32", "--context", "32", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "kvik", "compare", str(tiny_base_model), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "fp32" in done.stdout
    assert done.stderr.splitlines()[-1].startswith("kvik: cannot write")
    assert [p.name for p in tmp_path.iterdir()] == ["compare.json"]
