"""Public faults of paged and shared caches: beams, twins, aborts, boundaries, pressure."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import torch
from tests import tracers
from tests.engine.common import prompt, whole

from kvik.cache import KVCache, PagePool
from kvik.engine.beam import BeamParams, BeamSearch
from kvik.engine.engine import Engine
from kvik.engine.request import Request, Sample
from kvik.engine.sampler import Sampling
from kvik.errors import CapacityError, KvikError
from kvik.testing import models

assert tracers.PerChannel.examples  # importing them registered them
PLAIN, GROUPED = models.plain(), models.grouped()
RECIPES = ("fp16", "int8/int4", "fp16+window:20", "perchannel", "heavy:20")


def alone(request: Request, recipe: str, sample: int = 0) -> Sample:
    engine = Engine(GROUPED, recipe, memory="8MiB", prefix_cache=False)
    return engine.generate([request], n=1, sample=sample)[0].samples[0]


@pytest.mark.parametrize("recipe", RECIPES)
def test_case_31_beams_over_a_long_prompt_give_every_page_back(recipe: str) -> None:
    engine = Engine(GROUPED, recipe, memory="8MiB", poison=True)
    engine.generate([prompt(300)], max_new=12, beams=BeamParams(4, n=4))
    assert engine.stats().pool.used == 0
    assert whole(engine)


@pytest.mark.parametrize("recipe", RECIPES)
def test_case_51_beams_equal_beams_that_run_one_by_one(recipe: str) -> None:
    """Every beam recomputed from nothing at every step: no fork, no reorder, no copy."""
    ids, params, new = prompt(45), BeamParams(3, n=3), 6
    engine = Engine(GROUPED, recipe, memory="8MiB", poison=True)
    found = engine.generate([ids], max_new=new, beams=params)[0].samples
    search = BeamSearch(params, eos_ids=(), max_new=new)
    while not search.done:
        rows = []
        for beam in search.live:
            pool = PagePool(engine.cache.pool.page_bytes, 8 << 20)
            cache = KVCache(engine.cache.resolved, pool)
            text = torch.tensor([*ids, *beam.tokens])
            cache.plan([cache.create()], [len(text)])
            rows.append(GROUPED.forward(text, cache.positions, cache)[-1])
            cache.abort()
        search.advance(torch.stack(rows))
    for sample, want in zip(found, search.result(), strict=True):
        assert tuple(sample.tokens) == want.tokens
        assert sample.score == pytest.approx(want.score, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["int8/int4", "perchannel", "heavy:20"])
def test_case_33_a_tiny_pool_under_64_requests(recipe: str) -> None:
    """Freed pages are poisoned, so a use after free would show in the answers."""
    probe = Engine(GROUPED, recipe, memory="1MiB")
    slab = probe.cache.pool.slab_bytes
    sizes = zip(probe.memory.peak(90), probe.cache.pool.page_bytes, strict=True)
    memory = sum(-(-2 * n * size // slab) for n, size in sizes) * slab
    for swap in (0, memory // 2):
        engine = Engine(
            GROUPED, recipe, memory=memory, swap=swap, step_tokens=48, max_running=16, poison=True
        )
        engine.cache.pool.buffer.fill_(0xFF)
        chance = random.Random(4)
        requests = [
            Request(
                prompt(20, i % 3) + prompt(chance.randrange(50), 50 + i % 5),
                Sampling(float(i % 2), seed=i % 4),
                max_new=1 + i % 13,
            )
            for i in range(64)
        ]
        found = engine.generate(requests)
        for i in range(0, 64, 7):
            assert found[i].samples[0].tokens == alone(requests[i], recipe).tokens, i
        assert whole(engine)


@pytest.mark.parametrize("recipe", RECIPES)
def test_case_34_streams_that_share_a_partial_page(recipe: str) -> None:
    """Four samplings of one prompt that ends within a page: each equals the same one alone."""
    requests = [Request(prompt(45), Sampling(1.0, seed=s), max_new=10) for s in range(4)]
    engine = Engine(GROUPED, recipe, memory="8MiB", poison=True)
    engine.generate(requests[:1])
    for request, found in zip(requests, engine.generate(requests), strict=True):
        assert found.samples[0].tokens == alone(request, recipe).tokens
    assert len({tuple(alone(r, recipe).tokens) for r in requests}) == 4


@pytest.mark.parametrize("length", [32, 64, 128])
def test_case_35_a_prompt_of_whole_blocks_twice(length: int) -> None:
    """All of it is stored; its last token alone is computed again, for its logits."""
    engine = Engine(PLAIN, memory="8MiB", poison=True)
    first = engine.generate([prompt(length)], max_new=4)[0]
    before = engine.stats().computed
    again = engine.generate([prompt(length)], max_new=4)[0]
    assert again.cached_tokens == length - 1
    assert engine.stats().computed - before == 1 + 3
    assert again.samples[0].tokens == first.samples[0].tokens


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("length", [40, 64])
def test_cases_37_and_38_twins_that_prefill_together(recipe: str, length: int) -> None:
    """Two equal prompts at once; both equal one alone, also after one has ended."""
    requests = [Request(prompt(length), max_new=n) for n in (12, 4, 12)]
    engine = Engine(GROUPED, recipe, memory="8MiB", step_tokens=150, poison=True)
    for request, found in zip(requests, engine.generate(requests), strict=True):
        assert found.samples[0].tokens == alone(request, recipe).tokens
    assert whole(engine)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_case_39_aborted_within_its_prompt_and_sent_again(recipe: str, steps: int) -> None:
    request = Request(prompt(70), max_new=6)
    engine = Engine(GROUPED, recipe, memory="8MiB", step_tokens=20, poison=True)
    number = engine.add(request)
    other = engine.add(Request(prompt(70) + prompt(10, 9), max_new=6))
    for _ in range(steps):
        engine.step()
    engine.abort(number)
    engine.abort(other)
    assert engine.stats().pool.used == 0
    assert engine.generate([request])[0].samples[0].tokens == alone(request, recipe).tokens
    assert whole(engine)


def test_case_41_long_prompts_that_share_nothing_stay_within_the_pool() -> None:
    """Without the prefix cache, in chunks, one after another; what is too long is refused."""
    engine = Engine(PLAIN, memory="512KiB", step_tokens=64, poison=True)
    fits = 512 * 1024 // engine.cache.resolved.groups[0].main.nbytes * 32 - 40
    found = engine.generate([prompt(fits, i) for i in range(3)], max_new=2, share=False)
    assert all(one.samples[0].finish == "length" for one in found)
    assert engine.stats().pool.cached == 0
    with pytest.raises(CapacityError, match="ask for fewer"):
        engine.add(prompt(fits + 100), share=False)


@pytest.mark.parametrize("recipe", RECIPES)
def test_case_46_cold_and_warm_answers_agree(recipe: str) -> None:
    """Greedy, the same prompt three times, then longer ones that begin with it."""
    engine = Engine(GROUPED, recipe, memory="8MiB", step_tokens=33, poison=True)
    for tail in (0, 0, 0, 5, 40):
        request = Request(prompt(80) + prompt(tail, 3), max_new=8)
        assert engine.generate([request])[0].samples[0].tokens == alone(request, recipe).tokens


def test_case_49_a_fork_costs_no_time_and_beams_share_memory() -> None:
    """A fork of a long sequence takes no longer than one of a short one; nothing is copied."""
    engine = Engine(PLAIN, memory="64MiB")
    times = {}
    for length in (64, 3000):
        sequence = engine.cache.create()
        engine.cache.plan([sequence], [length])
        engine.cache.commit()
        used = engine.cache.pool.stats().used
        start = time.process_time()
        twins = [engine.cache.fork(sequence) for _ in range(300)]
        times[length] = time.process_time() - start
        assert engine.cache.pool.stats().used == used
        for twin in (*twins, sequence):
            engine.cache.free(twin)
    assert times[3000] < 5 * times[64] + 0.02
    found = engine.generate([prompt(64)], max_new=128, beams=BeamParams(4))[0]
    assert found.shared is not None
    assert found.shared.saved_fraction > 0.3


def test_case_83_preempted_while_its_pages_are_under_way() -> None:
    """Preempted, readmitted, preempted again in consecutive steps, to host memory and back."""
    request = Request(prompt(60), Sampling(1.0, seed=3), max_new=12)
    engine = Engine(GROUPED, "int8", memory="8MiB", swap="8MiB", step_tokens=25, poison=True)
    number, found = engine.add(request), Sample()
    while engine.busy:
        for output in engine.step():
            found.add(output)
        engine.preempt(number)
    assert found.tokens == alone(request, "int8").tokens
    assert engine.stats().counts.swapped > 10
    assert whole(engine)


def test_case_85_a_host_tier_that_is_full_delays_nobody() -> None:
    """What finds no room there is computed again."""
    engine = Engine(PLAIN, "fp16+page:4", memory=40 << 10, swap=14 << 10, step_tokens=32)
    found = engine.generate([prompt(8, i) for i in range(10)], max_new=25)
    counts = engine.stats().counts
    assert counts.swapped > 0
    assert counts.recomputed > 0
    for index, one in enumerate(found):
        request = Request(prompt(8, index), max_new=25)
        want = Engine(PLAIN, "fp16+page:4", memory="8MiB").generate([request])[0]
        assert one.samples[0].tokens == want.samples[0].tokens
    assert engine.stats().swapped_bytes == 0


@pytest.mark.parametrize("recipe", RECIPES)
def test_case_86_a_restored_prompt_computes_only_its_tail(recipe: str, tmp_path: Path) -> None:
    engine = Engine(GROUPED, recipe, memory="8MiB", step_tokens=32)
    request = Request(prompt(90) + prompt(6, 2), max_new=5)
    want = engine.generate([request])[0].samples[0]
    length = engine.save_prefix(tmp_path / "prefix", prompt(90) + prompt(6, 2))
    other = Engine(GROUPED, recipe, memory="8MiB", step_tokens=32)
    assert other.load_prefix(tmp_path / "prefix") == length
    found = other.generate([request])[0]
    assert found.samples[0].tokens == want.tokens
    assert found.cached_tokens > 0
    assert other.stats().computed == 96 - found.cached_tokens + 4
    assert whole(other)


def test_case_87_a_damaged_or_foreign_file_changes_nothing(tmp_path: Path) -> None:
    """Flipped bits, an empty file, another recipe's, another model's: refused in one line."""
    path = tmp_path / "prefix"
    engine = Engine(GROUPED, "int8", memory="8MiB")
    engine.generate([prompt(90)], max_new=2)
    engine.save_prefix(path, prompt(90))
    data = path.read_bytes()
    target = Engine(GROUPED, "int8", memory="8MiB")
    target.generate([prompt(30, 1)], max_new=2)
    before = target.stats()
    places = [0, 9, 40, len(data) // 2, len(data) - 1]
    for bad in (*(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in places), b"", data[:-9]):
        path.write_bytes(bad)
        with pytest.raises(KvikError):
            target.load_prefix(path)
    path.write_bytes(data)
    for other in (Engine(GROUPED, "int4", memory="8MiB"), Engine(PLAIN, "int8", memory="8MiB")):
        with pytest.raises(KvikError):
            other.load_prefix(path)
    with pytest.raises(CapacityError):
        Engine(GROUPED, "int8", memory=8_000).load_prefix(path)
    assert target.stats() == before
    assert target.load_prefix(path) > 0
    assert whole(target)


def test_case_90_the_use_of_the_pool_is_what_is_held() -> None:
    """Known pages: 3 for the prompt and the answer of one, 2 for the other."""
    engine = Engine(PLAIN, memory="8MiB", prefix_cache=False)
    engine.add(prompt(70), max_new=9)
    engine.add(prompt(33, 1), max_new=9)
    for _ in range(3):
        engine.step()
    assert engine.stats().pool.used == 5 * engine.cache.resolved.groups[0].main.nbytes


def test_case_95_a_second_batch_is_like_the_first() -> None:
    engine = Engine(PLAIN, "int8/int4", memory="8MiB")
    first = engine.generate([prompt(20), prompt(30, 1)], max_new=6)
    second = engine.generate([prompt(20), prompt(30, 1)], max_new=6)
    assert [c.samples[0].tokens for c in first] == [c.samples[0].tokens for c in second]


def test_a_loaded_prefix_takes_the_place_of_older_ones(tmp_path: Path) -> None:
    """In a pool that the prefix cache has filled; what does not fit at all changes nothing."""
    engine = Engine(PLAIN, "fp16+page:8", memory="96KiB")
    engine.generate([prompt(60)], max_new=2)
    engine.save_prefix(tmp_path / "prefix", prompt(60))
    for seed in range(1, 6):
        engine.generate([prompt(60, seed)], max_new=2)
    assert not engine.cache.pool.can_alloc((8,))
    assert engine.load_prefix(tmp_path / "prefix") == 60
    assert engine.generate([prompt(60)], max_new=2)[0].cached_tokens == 59
    small = Engine(PLAIN, "fp16+page:8", memory="24KiB")
    small.generate([prompt(20)], max_new=2)
    before = small.stats()
    with pytest.raises(CapacityError):
        small.load_prefix(tmp_path / "prefix")
    assert small.stats() == before
