"""A comparison from end to end on a tiny model, and the protocol against single steps."""

from __future__ import annotations

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
from kvik.evaluate import quality
from kvik.evaluate.compare import FIGURES, in_process_of_its_own, prepare, run
from kvik.evaluate.metrics import score
from kvik.evaluate.needle import make_needles
from kvik.evaluate.prompts import chat_prompt
from kvik.evaluate.text import library_text
from kvik.evaluate.worker import Task, work
from kvik.models import load_model
from kvik.models.tokenizer import Tokenizer


class Heard:
    def __init__(self) -> None:
        self.total = self.done = 0
        self.recipes: list[str] = []

    def begin(self, recipe: str, total: int) -> None:
        self.recipes.append(recipe)
        self.total += total

    def advance(self, stage: str, tokens: int) -> None:
        self.done += tokens

    def end(self, result: dict[str, Any]) -> None:
        pass


def _here(task: Task, folder: Path, progress: Any) -> dict[str, Any]:
    """The worker's work in this process, to save the start of another one."""
    return work(task, progress.advance)


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


def test_comparison_has_the_agreed_keys_and_exact_bytes(tiny_model: Path) -> None:
    recipes = ["fp32", "int8", "window:64", "int8"]
    prepared = prepare(str(tiny_model), recipes, context=700)
    heard = Heard()
    found = run(prepared, heard, launch=_here, threads=1)
    assert list(found) == ["model", "context", "env", "results"]
    assert [r["recipe"] for r in found["results"]] == ["fp32", "int8", "window:64"]
    for result in found["results"]:
        assert list(result) == ["recipe", *FIGURES]
        assert result["planned_bytes"] == result["measured_bytes"]
        assert result["bytes_per_token"] == result["measured_bytes"] / 700
        assert result["needle_total"] == 3
        assert min(result["prefill_tok_s"], result["decode_tok_s"], result["peak_rss_bytes"]) > 0
    full, int8, window = found["results"]
    assert (full["kl_mean"], full["top1"]) == (0.0, 1.0)
    assert 0 < int8["kl_mean"] < window["kl_mean"]
    assert int8["measured_bytes"] < 0.55 * full["measured_bytes"]
    assert {"cpu", "cores", "memory_bytes", "python", "torch", "kvik", "threads"} <= set(
        found["env"]
    )
    assert heard.done == heard.total
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_reference_runs_first_and_is_left_out_unless_asked_for(tiny_base_model: Path) -> None:
    prepared = prepare(str(tiny_base_model), ["fp16"], context=64, offsets=2)
    assert len(prepared.windows) == 2
    assert any("beyond the 256" in warning for warning in prepared.warnings)
    assert any("too short for the needle test" in warning for warning in prepared.warnings)
    heard = Heard()
    found = run(prepared, heard, launch=_here, threads=1)
    assert heard.recipes == ["fp32", "fp16"]
    assert [r["recipe"] for r in found["results"]] == ["fp16"]
    assert found["results"][0]["needle_total"] == 0


def test_a_failing_recipe_is_reported_and_the_others_go_on(tiny_base_model: Path) -> None:
    prepared = prepare(str(tiny_base_model), ["int8", "fp16"], context=32)

    def launch(task: Task, folder: Path, progress: Any) -> dict[str, Any]:
        if task.recipe == "int8":
            return {"recipe": "int8", "error": "no luck"}
        return _here(task, folder, progress)

    failed, fine = run(prepared, Heard(), launch=launch, threads=1)["results"]
    assert failed["error"] == "no luck"
    assert failed["kl_mean"] is None
    assert math.isfinite(fine["kl_mean"])


def test_short_text_is_refused(tiny_base_model: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("too short")
    with pytest.raises(KvikError, match=r"has 9 tokens, 545 are needed"):
        prepare(str(tiny_base_model), ["int8"], context=32, text=tmp_path / "text")


def test_needles_are_where_they_should_be(tiny_model: Path) -> None:
    tokenizer = Tokenizer.from_path(tiny_model)
    chat = chat_prompt(tokenizer)
    for needle in make_needles(tokenizer, library_text(), 900, chat=chat):
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
    assert sorted(p.name for p in out.iterdir()) == ["compare.json", "report.html"]
    assert "<code>int8</code>" in (out / "report.html").read_text()
