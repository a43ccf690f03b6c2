"""kvik's engine and the padded peer under the same load: what they answer and what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvik.bench.padded import PaddedServer, batch_bytes, load_peer, token_bytes
from kvik.bench.serving import Setting, document, measure
from kvik.bench.serving_agree import agreement
from kvik.bench.serving_load import Asked, fill, shrink, with_rate
from kvik.bench.serving_meter import Meter
from kvik.bench.serving_picture import draw, make_table
from kvik.bench.serving_run import Clock, KvikServer, serve
from kvik.bench.trace import SHAPES, Arrival, generate
from kvik.engine.engine import Engine
from kvik.engine.request import Request
from kvik.errors import CapacityError, KvikError
from kvik.models import Model, load_model
from kvik.recipe import Recipe
from kvik.testing import models

TEXT = tuple((7 * i + i * i // 5) % models.VOCAB for i in range(4000))
TRACE = shrink(generate(SHAPES["sharegpt"], requests=6, rate=1.0, context=2048, seed=2), 0.03)


class Ticking(Clock):
    """A simulated clock: every look at it takes a thirtieth of a second."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 1 / 30
        return self.time

    def wait(self, moment: float) -> None:
        self.time = max(self.time, moment)


def load(rate: float = 5.0) -> tuple[Asked, ...]:
    return fill(with_rate(TRACE, rate), TEXT)


def pages(model: Model, recipe: str, count: int) -> int:
    """Bytes of so many pages."""
    (group,) = Recipe.parse(recipe).resolve(model.spec).groups
    return count * group.main.nbytes


def run(
    recipe: str, memory: int, asked: tuple[Asked, ...] | None = None, tokens: int = 64
) -> tuple[KvikServer, Meter]:
    asked = asked or load()
    server = KvikServer(models.plain(), recipe, asked, memory=memory, tokens=tokens)
    return server, serve(server, asked, Ticking)


def test_answers_are_the_engines_and_all_tokens_are_counted() -> None:
    model, asked = models.plain(), load()
    _, meter = run("fp32+page:4", pages(model, "fp32+page:4", 40))
    for answer in meter.answers:
        request = Request(
            answer.asked.prompt, max_new=answer.asked.output, eos_ids=frozenset(), share=False
        )
        (alone,) = Engine(model, "fp32+page:4", memory="4MiB").generate([request])
        assert answer.tokens == alone.samples[0].tokens
        assert answer.times == sorted(answer.times)
        assert answer.times[0] > answer.asked.time
    found = meter.figures()
    assert found["completed"] == len(asked) == 6
    assert found["tokens"] == sum(a.output for a in asked)
    assert found["tokens_s"] * found["seconds"] == pytest.approx(found["tokens"])
    assert 0 < found["concurrent_mean"] <= found["concurrent_peak"]


@pytest.mark.parametrize("count", [18, 40])
def test_concurrency_and_bytes_never_exceed_the_budget(count: int) -> None:
    recipe = "fp32+page:4"
    memory = pages(models.plain(), recipe, count)
    server, meter = run(recipe, memory, load(rate=1000.0), tokens=512)
    assert meter.figures()["completed"] == 6
    assert 0 < meter.peak_bytes <= memory
    least = min(-(-len(a.prompt) // 4) for a in load())
    assert 1 < meter.figures()["concurrent_peak"] <= min(6, count // least)
    assert server.engine.stats().pool.used == 0


def test_a_smaller_recipe_runs_more_at_once_in_the_same_bytes() -> None:
    memory = pages(models.plain(), "fp32+page:4", 12)
    asked = tuple(Asked(0.0, TEXT[20 * i : 20 * i + 12], 10) for i in range(7))
    found = []
    for recipe in ("fp32+page:4", "fp16+page:4", "int8+page:4"):
        _, meter = run(recipe, memory, asked, tokens=512)
        found.append(meter.figures())
        assert meter.peak_bytes <= memory
    for key in ("concurrent_mean", "concurrent_peak"):
        most = [figures[key] for figures in found]
        assert most[0] < most[1] < most[2]


def test_preemptions_and_prefix_hits_are_counted() -> None:
    model, same = models.plain(), tuple(range(20))
    asked = tuple(Asked(0.0, same, 16) for _ in range(4))
    _, meter = run("fp32+page:4", pages(model, "fp32+page:4", 14), asked, tokens=512)
    found = meter.figures()
    assert found["completed"] == 4
    assert found["preemptions"] > 0
    assert found["prefix_tokens"] >= 3 * 16  # the others share the pages of the first
    _, roomy = run("fp32+page:4", pages(model, "fp32+page:4", 100))
    assert roomy.figures()["preemptions"] == roomy.figures()["prefix_tokens"] == 0


def test_a_request_that_cannot_run_is_refused_and_the_others_run() -> None:
    asked = (Asked(0.1, (1, 2, 3), 4), Asked(0.2, (5,) * 300, 4), Asked(0.3, (4, 5), 2))
    _, meter = run("fp32+page:4", pages(models.plain(), "fp32+page:4", 10), asked)
    assert [a.complete for a in meter.answers] == [True, False, True]
    assert "do not fit" in meter.answers[1].refused


# The peer


@pytest.fixture(scope="module")
def peer(tiny_model: Path) -> Any:
    pytest.importorskip("transformers")
    return load_peer(tiny_model)


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> Model:
    return load_model(tiny_model)


def padded(peer: Any, tiny: Model, asked: tuple[Asked, ...], tokens: int) -> PaddedServer:
    memory = tokens * token_bytes(tiny.spec)
    server = PaddedServer(peer, tiny.spec, asked, memory=memory)
    serve(server, asked, Ticking)
    return server


@pytest.mark.parametrize("tokens", [64, 90, 300])
def test_padded_batches_never_exceed_the_budget(peer: Any, tiny: Model, tokens: int) -> None:
    asked = load(rate=1000.0)
    server = padded(peer, tiny, asked, tokens)
    per_token = token_bytes(tiny.spec)
    assert per_token == 2 * 2 * (32 + 32) * 4
    sizes = [batch_bytes([asked[i] for i in batch], per_token) for batch in server.batches]
    # What its cache really holds is what was planned, and within the budget.
    assert server.meter.peak_bytes == max(sizes) <= tokens * per_token
    assert [i for batch in server.batches for i in batch] == list(range(6))
    # No batch is smaller than it had to be: one more request would not have fitted.
    for batch in server.batches[1:-1]:
        more = [asked[i] for i in (*batch, batch[-1] + 1)]
        assert batch_bytes(more, per_token) > tokens * per_token


def test_requests_end_with_their_own_token_and_batches_follow_one_another(
    peer: Any, tiny: Model
) -> None:
    server = padded(peer, tiny, load(rate=1000.0), 90)
    answers, last = server.meter.answers, 0.0
    assert len(server.batches) > 2
    for batch in server.batches:
        starts = {answers[i].times[0] for i in batch}
        assert len(starts) == 1
        assert starts.pop() > last
        ends = {answers[i].times[-1] for i in batch}
        assert len(ends) == len({answers[i].asked.output for i in batch})
        last = max(ends)
    found = server.meter.figures()
    assert found["tokens"] == sum(a.asked.output for a in answers)
    assert found["concurrent_peak"] == max(map(len, server.batches))
    assert found["concurrent_mean"] < found["concurrent_peak"]


def test_what_does_not_fit_alone_is_refused(peer: Any, tiny: Model) -> None:
    asked = (Asked(0.1, (1,) * 30, 4), Asked(0.2, (1,) * 30, 5), Asked(0.3, (2,), 1))
    server = padded(peer, tiny, asked, 33)
    assert [bool(a.refused) for a in server.meter.answers] == [False, True, False]
    assert [len(a.tokens) for a in server.meter.answers] == [4, 0, 1]


def test_both_give_the_same_greedy_answers(peer: Any, tiny: Model) -> None:
    asked, fp32 = load(rate=1000.0), Recipe.parse("fp32")
    theirs = padded(peer, tiny, asked, 200).meter.answers
    server = KvikServer(tiny, fp32, asked, memory=1 << 20, tokens=64)
    ours = serve(server, asked, Ticking).answers
    found = agreement(tiny, fp32, ours, theirs)
    assert found["compared"] == 6
    assert found["widest_gap"] is None or found["widest_gap"] < 1e-3
    assert found["equal"] >= 0.8
    # And a wrong token is noticed, with what the model thinks of it.
    ours[3].tokens[1] = (theirs[3].tokens[1] + 1) % 256
    wrong = agreement(tiny, fp32, ours, theirs)
    assert wrong["equal"] == pytest.approx(found["equal"] - 1 / 6)
    swapped = agreement(tiny, fp32, theirs, ours)
    assert swapped["widest_gap"] > 0.01


def test_layers_without_a_dense_cache_are_refused() -> None:
    with pytest.raises(KvikError, match="latent"):
        token_bytes(models.latent().spec)


# All of it


class Quiet:
    """Nobody watches; what was told is kept."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, int]] = []
        self.tokens: list[int] = []

    def begin(self, recipe: str, total: int) -> None:
        self.runs.append((recipe, total))
        self.tokens.append(0)

    def advance(self, stage: str, tokens: int) -> None:
        self.tokens[-1] += tokens

    def end(self, result: dict[str, Any]) -> None:
        pass


def setting(model: Model, **options: Any) -> Setting:
    recipes = tuple(map(Recipe.parse, ("fp32+page:8", "int8+page:8")))
    base = {"memory": 256 << 10, "step_tokens": 64, "text": TEXT, "rates": (2.0, 50.0)}
    return Setting(model=model, recipes=recipes, **{"trace": TRACE, **base, **options})


@pytest.fixture(scope="module")
def result(peer: Any, tiny: Model) -> dict[str, Any]:
    asked, quiet = setting(tiny, peer=True), Quiet()
    found = document(asked, measure(asked, quiet, Ticking))
    assert quiet.tokens == [sum(a.output for a in TRACE)] * 6 == [n for _, n in quiet.runs]
    return found


def test_the_document_tells_of_every_run(result: dict[str, Any]) -> None:
    read = json.loads(json.dumps(result, allow_nan=False))
    names = [(run["system"], run["recipe"], run["rate"]) for run in read["runs"]]
    each = [("transformers", None), ("kvik", "fp32+page:8"), ("kvik", "int8+page:8")]
    assert names == [(*one, rate) for rate in (2.0, 50.0) for one in each]
    total = sum(a.output for a in TRACE)
    for run in read["runs"]:
        assert (run["completed"], run["refused"], run["failed"]) == (6, 0, 0)
        assert run["tokens"] == total
        assert run["offered_tokens_s"] == pytest.approx(run["rate"] * total / 6)
        assert 0 < run["peak_bytes"] <= read["memory_bytes"]
        assert run["tokens_s"] <= 30 * run["concurrent_peak"]  # a tick for each token
        for key in ("ttft", "itl", "latency"):
            times = run[key]
            assert 0 < times["p50"] <= times["p90"] <= times["p99"]
        if run["system"] == "transformers":
            assert sum(run["batches"]) == 6
        elif run["recipe"] == "fp32+page:8":
            assert run["agreement"]["equal"] >= 0.8
    assert read["trace"]["prompt_mean"] == sum(a.prompt for a in TRACE) / 6


def test_table_and_picture_show_every_run(result: dict[str, Any]) -> None:
    assert make_table(result).row_count == 6
    svg = draw(result)
    assert svg == draw(result)
    for text in ("transformers", "kvik fp32+page:8", "kvik int8+page:8"):
        assert f">{text}<" in svg
    # A run in which nothing could be measured leaves a blank.
    blank = {**result, "runs": [{**run, "ttft": None, "itl": None} for run in result["runs"]]}
    assert make_table(blank).row_count == 6
    assert draw(blank) != svg


def test_what_cannot_be_measured_is_refused() -> None:
    model = models.plain()
    tight = setting(model, trace=(Arrival(1.0, 20, 9),), memory=pages(model, "fp32+page:8", 1))
    with pytest.raises(CapacityError, match=r"fp32\+page:8: no request of the trace fits"):
        tight.check()
    with pytest.raises(KvikError, match="smaller --scale"):
        setting(model, trace=(Arrival(1.0, 4000, 98),)).check()
    with pytest.raises(KvikError, match="latent"):
        setting(models.latent(), peer=True).check()
