"""Full caches, timed steps and their bytes; the clock itself is not tested."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from kvik.bench.bandwidth import read_bandwidth
from kvik.bench.decode import Setting, measure_decode, measure_prefill, records, spread
from kvik.bench.decode_bytes import held_bytes, weight_bytes
from kvik.bench.decode_cache import Batch, Load, needed_bytes
from kvik.bench.decode_picture import draw, make_table
from kvik.engine.session import Session
from kvik.errors import CapacityError, KvikError
from kvik.models import Model
from kvik.models.random import random_model
from kvik.plan import kv_bytes
from kvik.recipe import Recipe
from kvik.testing import models

SMALL = 1 << 20  # bytes; enough to be timed
KINDS = (models.plain, models.grouped, models.stateful, models.latent)
# A latent layer has no V of its own to code otherwise.
PAIRS = [(r, m) for r in ("fp32+page:8", "int8+page:8", "window:28+page:8") for m in KINDS]
PAIRS += [("int8/int4+page:8", m) for m in KINDS[:3]] + [("sinks:4+window:28", models.plain)]


def batch(recipe: str, context: int, count: int, model: Model | None = None) -> Batch:
    made = Batch(model or models.plain(), Recipe.parse(recipe), Load(context, count, 8))
    made.fill(seed=3)
    return made


@pytest.mark.parametrize(("recipe", "kind"), PAIRS)
def test_a_filled_batch_holds_what_the_planner_says(recipe: str, kind: Callable[[], Model]) -> None:
    made_of = kind()
    plan = Recipe.parse(recipe).resolve(made_of.spec)
    full = batch(recipe, 70, 3, made_of)
    assert [s.length for s in full.sequences] == [70] * 3
    assert full.kv_bytes == 3 * kv_bytes(plan, 70).total
    full.step()
    assert [s.length for s in full.sequences] == [71] * 3
    assert full.kv_bytes == 3 * kv_bytes(plan, 71).total
    full.free()
    assert full.cache.pool.stats().used == 0


@pytest.mark.parametrize("recipe", ["int8+page:8", "sinks:4+window:28"])
def test_copies_say_the_same_in_pages_of_their_own(recipe: str) -> None:
    full = batch(recipe, 40, 3)
    pages = [set(s.state.pages().tolist()) for s in full.sequences]
    assert len(set.union(*pages)) == sum(map(len, pages)) > 0
    full.cache.plan(full.sequences, [1] * 3)
    ids = torch.full((3,), 5)
    logits = full.model.forward(ids, full.cache.positions, full.cache)
    full.cache.abort()
    assert torch.allclose(logits, logits[:1].expand(3, -1))
    # A control: another seed is another past, and is seen.
    full.fill(seed=4)
    full.cache.plan(full.sequences, [1] * 3)
    assert not torch.allclose(full.model.forward(ids, full.cache.positions, full.cache), logits)


def test_attention_alone_leaves_the_sequences_as_they_were() -> None:
    full = batch("int8", 40, 2)
    before, held = [s.state for s in full.sequences], full.cache.pool.stats()
    assert full.attend(torch.Generator().manual_seed(0)) > 0
    assert [s.state for s in full.sequences] == before
    assert full.cache.pool.stats() == held


@pytest.mark.parametrize(("count", "chunk"), [(1, 16), (1, 64), (3, 16)])
def test_a_prompt_is_computed_as_a_session_computes_it(count: int, chunk: int) -> None:
    model, recipe = models.plain(), Recipe.parse("int8+page:8")
    prompted = Batch(model, recipe, Load(40, count, 1))
    seconds, moved = prompted.prompt(chunk)
    assert seconds > 0
    share = chunk // count
    ends = [min(low + share, 40) for low in range(0, 40, share)]
    plan = recipe.resolve(model.spec)
    assert moved == count * sum(kv_bytes(plan, end).total for end in ends)
    alone = Session(model, recipe, max_tokens=41)
    alone.feed([i * 7919 % model.spec.vocab for i in range(40)])
    prompted.cache.plan(prompted.sequences, [1] * count)
    ids = torch.full((count,), 5)
    row = model.forward(ids, prompted.cache.positions, prompted.cache).float()
    assert torch.allclose(row, alone.feed([5]).expand(count, -1), atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_reads_every_weight_but_an_embedding_of_its_own(tied: bool) -> None:
    spec = replace(models.plain().spec, tied=tied)
    model = random_model(spec, seed=1, dtype=torch.float32)
    table = spec.vocab * spec.hidden * 4
    layer = spec.layers[0]
    wide = layer.heads * layer.k_dim + layer.kv_heads * (layer.k_dim + layer.v_dim)
    each = spec.hidden * (wide + layer.heads * layer.v_dim + 3 * spec.ffn + 2)
    rest = 4 * (each * len(spec.layers) + spec.hidden)
    assert weight_bytes(model) == rest + table
    assert held_bytes(model) == rest + table * (1 if tied else 2)


def test_the_read_loop_touches_the_whole_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_bandwidth(2, nbytes=SMALL, repeats=5)
    assert found.threads == 2
    assert found.best >= found.median > 0
    assert found.as_json() == {
        "threads": 2, "best": found.best / 1e9, "median": found.median / 1e9
    }  # fmt: skip
    read: list[int] = []
    monkeypatch.setattr(np, "array_split", lambda a, n: [read.append(a.nbytes) or a[:1]] * n)
    read_bandwidth(1, nbytes=SMALL, repeats=1)
    assert read == [SMALL]


def test_a_buffer_that_does_not_fit_is_refused() -> None:
    with pytest.raises(CapacityError, match="measuring the bandwidth takes"):
        read_bandwidth(1, nbytes=1 << 60)


def setting(**changes: object) -> Setting:
    recipes = tuple(map(Recipe.parse, ("fp16", "int8")))
    plain = Setting(
        models.plain(), recipes, (20, 50), (1, 2), rounds=2, steps=2, bandwidth_bytes=SMALL
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_decode_records_add_up() -> None:
    told: list[str] = []
    result = measure_decode(setting(), told.append)
    assert [(r["context"], r["batch"], r["recipe"]) for r in result["runs"]] == [
        (c, b, recipe) for c in (20, 50) for b in (1, 2) for recipe in ("fp16", "int8")
    ]
    assert len(told) == len(result["runs"])
    best = result["read_gb_s"][-1]["best"]
    for run in result["runs"]:
        ms = run["ms"]
        assert ms["least"] <= ms["median"] <= ms["most"]
        assert ms["n"] == run["attend_ms"]["n"] == 4
        assert run["bytes"] == run["weight_bytes"] + run["kv_bytes"]
        assert run["gb_s"] == pytest.approx(run["bytes"] / ms["median"] / 1e6)
        assert run["floor_ms"] == pytest.approx(run["bytes"] / best / 1e6)
        assert run["over_floor"] == pytest.approx(best / run["gb_s"])
        assert run["tokens_s"] * run["ms_token"] == pytest.approx(1e3)
        assert run["load_average"] >= 0
    for record, run in zip(records(result), result["runs"], strict=True):
        assert record["model"] == "plain"
        assert record["read_gb_s"] == result["read_gb_s"]
        assert json.loads(json.dumps(record, allow_nan=False)).items() >= run.items()


def test_prefill_records_add_up() -> None:
    result = measure_prefill(setting(chunk=16, contexts=(40,)))
    for run in result["runs"]:
        chunks = -(-40 // (16 // run["batch"]))
        assert run["bytes"] > chunks * run["weight_bytes"]
        assert run["ms"]["n"] == 2
        assert run["tokens_s"] == pytest.approx(40 * run["batch"] * 1e3 / run["ms"]["median"])
        assert run["kv_bytes"] > 0
        assert "floor_ms" not in run


@pytest.mark.parametrize("measure", [measure_decode, measure_prefill])
def test_picture_and_table_of_a_result(measure: object) -> None:
    result = measure(setting(contexts=(20, 30), rounds=1))  # type: ignore[operator]
    svg = draw(result)
    assert svg == draw(result)
    for text in ("int8, batch 2", "plain read loop", "tokens of context"):
        assert text in svg
    assert make_table(result).row_count == len(result["runs"]) == 8


def test_what_cannot_be_measured_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Batch, "__init__", lambda *args: pytest.fail("something ran"))
    for wrong, words in (
        (setting(contexts=(4096,)), "beyond the 4,096 that plain reads"),
        (setting(recipes=(Recipe.parse("none"),)), "none caches no tokens"),
    ):
        with pytest.raises(KvikError, match=words):
            measure_decode(wrong)
    with pytest.raises(KvikError, match="beyond the 4,096"):
        measure_prefill(setting(contexts=(4097,)))
    monkeypatch.setattr("kvik.bench.decode_cache.available_memory", lambda: 100_000)
    with pytest.raises(CapacityError, match="a batch of 2 with 50 tokens needs"):
        measure_decode(setting())


def test_bytes_needed_are_those_of_the_longest_moment() -> None:
    model, recipe = models.plain(), Recipe.parse("int8")
    plan = recipe.resolve(model.spec)
    assert needed_bytes(model, recipe, Load(50, 3, 20)) == 3 * kv_bytes(plan, 70).total


def test_spread_is_in_milliseconds() -> None:
    found = spread([0.004, 0.001, 0.002])
    assert found == {"median": 2.0, "least": 1.0, "most": 4.0, "n": 3}
