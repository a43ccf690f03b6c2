"""The engine's promises to its callers: order, limits, ends, errors, sharing."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests import tracers
from tests.engine.common import prompt, whole
from tests.engine.interrupting import interrupted_at

from kvik.engine.beam import BeamParams
from kvik.engine.engine import Engine
from kvik.engine.request import Output, Request, Sample
from kvik.engine.sampler import Sampling
from kvik.errors import CapacityError, KvikError
from kvik.models import Model
from kvik.testing import models

assert tracers.PerChannel.examples  # importing them registered them
PLAIN = models.plain()


def run(engine: Engine) -> dict[int, dict[int, Sample]]:
    found: dict[int, dict[int, Sample]] = defaultdict(dict)
    while engine.busy:
        for output in engine.step():
            found[output.id].setdefault(output.sample, Sample()).add(output)
    return found


def test_a_shared_prefix_is_stored_once_and_computed_once() -> None:
    """64 requests that arrive at once share 2,000 tokens: their pages and their work exist once."""
    engine = Engine(PLAIN, "fp16", memory="64MiB", max_running=64, poison=True)
    page = engine.cache.resolved.groups[0].main.nbytes
    shared, own, new = prompt(2000), 10, 4
    for index in range(64):
        engine.add((*shared, index, *prompt(own - 1, index)), max_new=new)
    peak = 0
    while engine.busy:
        engine.step()
        peak = max(peak, engine.cache.pool.stats().used)
    # The rest of a request lies in the page where the prefix ends, and in at most one more.
    assert peak <= (2000 // 32 + 64 * 2 + 1) * page
    stats = engine.stats()
    assert stats.computed == 2000 + 64 * (own + new - 1)
    assert stats.counts.reused == 63 * 2000
    assert whole(engine)


@pytest.mark.parametrize("kv", ["int8+window:600", "fp16+sinks:4+window:100"])
def test_a_shared_prefix_is_computed_once_where_only_checkpoints_can_be_shared(kv: str) -> None:
    """Requests that wait for a prefix ask for a checkpoint at the place where they part."""
    engine = Engine(PLAIN, kv, memory="64MiB", max_running=16, poison=True)
    shared = prompt(1000)
    for index in range(16):
        engine.add((*shared, index, *prompt(6, index)), max_new=3)
    run(engine)
    assert engine.stats().computed == 1000 + 16 * (7 + 2)
    assert whole(engine)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kv", "swap", "count"),
    [("fp16", 0, 1000), ("int8", "1MiB", 300), ("int8/int4+sinks:2+window:18", 0, 300)],
)
def test_overload_ends_for_everyone(kv: str, swap: int | str, count: int) -> None:
    """A third of the requests is aborted at random times; the others end; nothing leaks."""
    probe = Engine(PLAIN, kv, memory="1MiB")
    one = [probe.memory.peak(32)]
    slab, sizes = probe.cache.pool.slab_bytes, probe.cache.pool.page_bytes
    need = sum(8 * -(-n * size // slab) for n, size in zip(one[0], sizes, strict=True))
    engine = Engine(PLAIN, kv, memory=need * slab, swap=swap, max_running=32, step_tokens=64)
    chance = random.Random(1)
    requests: dict[int, Request] = {}
    refused = 0
    for index in range(count):
        length, new = chance.randrange(1, 25), chance.randrange(1, 9)
        if index % 100 == 7:
            length = 100_000 if kv != "int8/int4+sinks:2+window:18" else 20
        request = Request(prompt(length, index % 50), max_new=new)
        try:
            requests[engine.add(request)] = request
        except CapacityError:
            refused += 1
    doomed = {number: chance.randrange(count // 3) for number in requests if chance.random() < 0.33}
    done: dict[int, Output] = {}
    first: dict[int, int] = {}
    for step in itertools.count():
        for number, when in doomed.items():
            if when == step:
                engine.abort(number)
        if not engine.busy:
            break
        for output in engine.step():
            first.setdefault(output.id, step)
            if output.last:
                assert output.id not in done
                done[output.id] = output
    assert set(done) == set(requests)
    cancelled = {number for number, output in done.items() if output.finish == "cancelled"}
    assert cancelled <= set(doomed)
    assert all(done[n].finish == "length" for n in requests if n not in cancelled)
    assert refused == (count // 100 if "window" not in kv else 0)
    # First come, first served: nobody is passed by more than the requests that run beside it.
    order = sorted((n for n in requests if n not in doomed), key=lambda n: first[n])
    assert all(abs(order.index(n) - place) <= 64 for place, n in enumerate(sorted(order)))
    assert whole(engine)


def test_answers_do_not_depend_on_the_company() -> None:
    """Identical prompts side by side, and different ones, all equal what they give alone."""
    requests = [Request(prompt(40), Sampling(1.0, seed=s), max_new=12) for s in (1, 2, 3, 1)]
    together = Engine(PLAIN, memory="8MiB").generate(requests)
    for request, found in zip(requests, together, strict=True):
        alone = Engine(PLAIN, memory="8MiB", prefix_cache=False).generate([request])[0]
        assert alone.samples[0].tokens == found.samples[0].tokens
    assert together[0].samples[0].tokens == together[3].samples[0].tokens
    assert together[0].samples[0].tokens != together[1].samples[0].tokens


def test_priorities_then_arrival() -> None:
    """A better priority is admitted first; equals in the order in which they came."""
    engine = Engine(PLAIN, memory="8MiB", max_running=1)
    numbers = [engine.add(prompt(5, i), max_new=2, priority=p) for i, p in enumerate((1, 1, 0, 1))]
    ended = []
    while engine.busy:
        ended += [output.id for output in engine.step() if output.last]
    assert ended == [numbers[i] for i in (2, 0, 1, 3)]


def test_the_longest_stored_prefix_first() -> None:
    """With that order a request that needs little work passes one that needs much."""
    for order, first in (("prefix", 1), ("arrival", 0)):
        engine = Engine(PLAIN, memory="8MiB", max_running=1, order=order)  # type: ignore[arg-type]
        engine.generate([prompt(200)], max_new=1)
        numbers = [engine.add(prompt(200, 9), max_new=2), engine.add(prompt(200), max_new=2)]
        ended = []
        while engine.busy:
            ended += [output.id for output in engine.step() if output.last]
        assert ended[0] == numbers[first]


def test_the_oldest_request_is_never_preempted() -> None:
    """It runs to its end without a break, whatever else comes and with whatever priority."""
    engine = Engine(PLAIN, "fp16+page:4", memory=30 << 10, step_tokens=16, poison=True)
    oldest = engine.add(prompt(20), max_new=20, priority=5)
    engine.step()
    for index in range(6):
        engine.add(prompt(20, index + 1), max_new=20)
    steps = 0
    while engine.busy:
        outputs = engine.step()
        if oldest in engine._jobs:
            steps += 1
            running = [job.id for job in engine.scheduler.running]
            assert oldest in running
            assert steps < 4 or any(output.id == oldest for output in outputs)
    assert engine.stats().counts.recomputed > 0
    assert whole(engine)


def test_what_cannot_fit_alone_is_refused_at_once() -> None:
    """With the numbers, and without disturbing the rest."""
    engine = Engine(PLAIN, "fp16", memory="256KiB")
    with pytest.raises(CapacityError, match=r"even alone; ask for fewer"):
        engine.add(prompt(4000), max_new=1)
    with pytest.raises(CapacityError, match=r"30 x 109 tokens"):
        engine.add(prompt(10), max_new=100, n=30)
    with pytest.raises(CapacityError, match="runs 256"):
        engine.add(prompt(10), n=257)
    assert not engine.busy
    assert engine.generate([prompt(10)], max_new=3)[0].samples[0].finish == "length"


def test_everything_that_is_admitted_fits_to_its_last_token() -> None:
    """The largest request that a pool accepts really ends in it, alone and with a full cache."""
    for kv in ("fp16", "int8/int4+page:7", "fp32+sinks:3+window:20", "fp16@0+int4"):
        engine = Engine(PLAIN, kv, memory=100_000, step_tokens=50, poison=True)
        low, high = 1, 3000
        while low < high:
            middle = (low + high + 1) // 2
            try:
                engine.scheduler.check(Request(prompt(middle), max_new=5))
                low = middle
            except CapacityError:
                high = middle - 1
        engine.generate([prompt(min(low, 60), 5)], max_new=5)
        found = engine.generate([prompt(low)], max_new=5)[0].samples[0]
        assert found.finish == "length", kv
        assert whole(engine)


def test_a_request_can_be_aborted_at_any_moment() -> None:
    """Waiting, in its prompt, while generating, and twice; its pages are free at once."""
    for when in range(6):
        engine = Engine(PLAIN, memory="8MiB", step_tokens=16, poison=True)
        number = engine.add(prompt(40), max_new=10)
        other = engine.add(prompt(30, 2), max_new=3)
        for _ in range(when):
            engine.step()
        engine.abort(number)
        engine.abort(number)
        assert number not in engine._jobs
        found = run(engine)
        assert found[number][0].finish == "cancelled"
        assert found[other][0].finish == "length"
        assert whole(engine)


def test_deadlines_end_what_waits_and_what_runs() -> None:
    """By the engine's clock; what was generated until then was told."""
    now = 0.0
    engine = Engine(PLAIN, memory="8MiB", max_running=1, clock=lambda: now)
    running = engine.add(prompt(5), max_new=50, deadline=3.5)
    waiting = engine.add(prompt(5, 1), max_new=50, deadline=2)
    found: dict[int, Sample] = defaultdict(Sample)
    while engine.busy:
        for output in engine.step():
            found[output.id].add(output)
        now += 1
    assert found[waiting].finish == found[running].finish == "deadline"
    assert len(found[waiting].tokens) == 0
    assert len(found[running].tokens) == 4
    assert whole(engine)


def test_log_probabilities_are_the_models_own() -> None:
    """Those of the chosen token and of the likeliest alternatives, for every token."""
    sample = (
        Engine(PLAIN, "fp32", memory="8MiB")
        .generate([Request(prompt(20), Sampling(0.7, top_k=3, seed=2), max_new=6, logprobs=4)])[0]
        .samples[0]
    )
    assert len(sample.tokens) == len(sample.logprobs) == len(sample.top) == 6
    for token, logprob, top in zip(sample.tokens, sample.logprobs, sample.top, strict=True):
        assert [t for t, _ in top].index(token) < 3
        assert dict(top)[token] == logprob
        assert [v for _, v in top] == sorted((v for _, v in top), reverse=True)


def test_end_tokens_and_lengths() -> None:
    """A sample ends with its end token; the others of its request go on."""
    free = Engine(PLAIN, memory="8MiB").generate(
        [Request(prompt(30), Sampling(1.0), max_new=12, n=4)]
    )[0]
    end = free.samples[1].tokens[5]
    found = Engine(PLAIN, memory="8MiB").generate(
        [Request(prompt(30), Sampling(1.0), max_new=12, n=4, eos_ids=frozenset({end}))]
    )[0]
    for a, b in zip(free.samples, found.samples, strict=True):
        stop = a.tokens.index(end) + 1 if end in a.tokens else 12
        assert b.tokens == a.tokens[:stop]
        assert b.finish == ("eos" if end in a.tokens else "length")


def test_samples_and_beams_report_what_sharing_saved() -> None:
    """Bytes held together against bytes held apart; a single sample shares with nobody."""
    engine = Engine(PLAIN, memory="8MiB")
    many = engine.generate([prompt(128)], max_new=4, n=4, sampling=Sampling(1.0))[0]
    beams = engine.generate([prompt(128)], max_new=4, beams=BeamParams(4, n=2))[0]
    alone = engine.generate([prompt(128)], max_new=4)[0]
    assert many.shared is not None
    assert beams.shared is not None
    # 4 pages of prompt and one of its own each: 5 apiece, 4 + 4 together.
    assert many.shared.saved_fraction == pytest.approx(1 - 8 / 20, abs=0.02)
    assert 0.5 < beams.shared.saved_fraction < 0.8
    assert alone.shared is None
    assert [len(s.tokens) for s in beams.samples] == [4, 4]
    assert whole(engine)


def test_beams_survive_preemption_and_company() -> None:
    """A beam search gives the same texts and scores when it is interrupted, both ways."""
    request = Request(prompt(50), max_new=8, beams=BeamParams(4, n=4))
    want = Engine(PLAIN, "int8", memory="8MiB", prefix_cache=False).generate([request])[0].samples
    for swap in (0, "8MiB"):
        engine = Engine(PLAIN, "int8", memory="8MiB", swap=swap, step_tokens=20, poison=True)
        engine.add(prompt(30, 4), max_new=20)
        number = engine.add(request)
        found: dict[int, Sample] = defaultdict(Sample)
        for step in itertools.count():
            if not engine.busy:
                break
            for output in engine.step():
                if output.id == number:
                    found[output.sample].add(output)
            if step in (1, 5, 9):
                engine.preempt(number)
        for index, sample in enumerate(want):
            assert found[index].tokens == sample.tokens
            assert found[index].score == pytest.approx(sample.score, abs=1e-5)
        assert whole(engine)


class Faulty(Model):
    """Fails, or gives no usable logits, when told to."""

    def forward(self, *args: torch.Tensor, **options: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        logits = super().forward(*args, **options)  # type: ignore[arg-type]
        return FAULTS.pop(0)(logits) if FAULTS else logits


FAULTS: list = []


def raises(error: BaseException):
    def fail(_: torch.Tensor) -> torch.Tensor:
        raise error

    return fail


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), RuntimeError("no memory")])
def test_a_step_that_fails_loses_nothing(error: BaseException) -> None:
    """The error comes out; the next step goes on as if nothing had been."""
    model = Faulty(PLAIN.name, PLAIN.spec, PLAIN.decoder)
    want = Engine(PLAIN, memory="8MiB").generate([prompt(40), prompt(20, 1)], max_new=5)
    engine = Engine(model, memory="8MiB", step_tokens=16, poison=True)
    numbers = [engine.add(prompt(40), max_new=5), engine.add(prompt(20, 1), max_new=5)]
    found: dict[int, Sample] = defaultdict(Sample)
    for step in itertools.count():
        if not engine.busy:
            break
        if step % 3 == 1:
            FAULTS.append(raises(error))
            with pytest.raises(type(error)):
                engine.step()
        else:
            for output in engine.step():
                found[output.id].add(output)
    assert [found[n].tokens for n in numbers] == [c.samples[0].tokens for c in want]
    assert whole(engine)


def test_logits_without_a_token_end_one_request_and_not_the_others() -> None:
    """NaN in one row is that request's error."""

    def spoil(logits: torch.Tensor) -> torch.Tensor:
        logits = logits.clone()
        logits[0] = float("nan")
        return logits

    engine = Engine(Faulty(PLAIN.name, PLAIN.spec, PLAIN.decoder), memory="8MiB")
    FAULTS.extend([lambda x: x, lambda x: x, spoil])
    bad, good = engine.generate([prompt(8), prompt(9, 1)], max_new=6)
    assert bad.samples[0].finish == "error"
    assert "logits are NaN" in bad.samples[0].reason
    assert len(bad.samples[0].tokens) == 2
    assert good.samples[0].finish == "length"
    assert whole(engine)


def test_refusals_say_what_to_do() -> None:
    """Bad requests raise at once and leave the engine idle."""
    engine = Engine(PLAIN, memory="8MiB")
    for options, words in (
        ({"max_new": 0}, "max_new"),
        ({"n": 0}, "n is 0"),
        ({"deadline": 0}, "deadline"),
        ({"logprobs": -1}, "logprobs"),
        ({"marks": (9,)}, "marks"),
        ({"stop": ("a",)}, "without a tokenizer"),
        ({"beams": BeamParams(2), "n": 2}, "beam search"),
        ({"beams": BeamParams(2), "logprobs": 1}, "beam search"),
    ):
        with pytest.raises(KvikError, match=words):
            engine.add(prompt(5), **options)
    with pytest.raises(KvikError, match="empty"):
        engine.add(())
    with pytest.raises(KvikError, match="vocabulary"):
        engine.add((5, 96))
    with pytest.raises(KvikError, match="token id -1"):
        engine.add((5, -1))
    with pytest.raises(CapacityError):
        engine.generate([prompt(5), prompt(100_000)])
    assert not run(engine) or not engine.busy
    assert whole(engine)


def test_memory_sizes() -> None:
    """As a number or as text; too small for a page is refused."""
    assert Engine(PLAIN, memory="1MiB").cache.pool.nbytes <= 1 << 20
    for bad in ("lots", "-1", 10):
        with pytest.raises(KvikError):
            Engine(PLAIN, memory=bad)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_domains_never_share(prefix_cache: bool) -> None:
    """Equal prompts of two tenants are computed twice; of one, once."""
    engine = Engine(PLAIN, memory="8MiB", prefix_cache=prefix_cache)
    first = engine.generate([prompt(64)], max_new=2, domain="a")[0]
    other = engine.generate([prompt(64)], max_new=2, domain="b")[0]
    again = engine.generate([prompt(64)], max_new=2, domain="a")[0]
    private = engine.generate([prompt(64)], max_new=2, domain="a", share=False)[0]
    assert first.cached_tokens == other.cached_tokens == private.cached_tokens == 0
    assert again.cached_tokens == (63 if prefix_cache else 0)


def test_requests_from_other_threads_while_a_step_runs() -> None:
    """add and abort return at once; the next step sees them."""
    from threading import Event, Thread

    inside, go = Event(), Event()

    def pause(logits: torch.Tensor) -> torch.Tensor:
        inside.set()
        assert go.wait(10)
        return logits

    engine = Engine(Faulty(PLAIN.name, PLAIN.spec, PLAIN.decoder), memory="8MiB")
    first = engine.add(prompt(8), max_new=4)
    FAULTS.append(pause)
    thread = Thread(target=engine.step)
    thread.start()
    assert inside.wait(10)
    second = engine.add(prompt(9), max_new=4)
    engine.abort(first)
    go.set()
    thread.join()
    found = run(engine)
    assert found[first][0].finish == "cancelled"
    assert len(found[second][0].tokens) == 4
    assert whole(engine)


def test_interrupts_at_any_line_lose_nothing() -> None:
    """Ctrl-C at random lines of engine and cache: every token is told once, none is lost."""
    options = {"memory": "80KiB", "swap": "20KiB", "step_tokens": 16, "poison": True}
    prompts = [prompt(40), prompt(9, 1), prompt(40)]
    want = Engine(PLAIN, memory="8MiB").generate(prompts, max_new=12)
    engine = Engine(PLAIN, "fp16+page:4", **options)  # type: ignore[arg-type]
    numbers = [engine.add(ids, max_new=12) for ids in prompts]
    found: dict[int, Sample] = defaultdict(Sample)
    chance, hits = random.Random(0), 0
    while engine.busy:
        line = chance.choice((0, chance.randrange(1, 400), chance.randrange(1, 2500)))
        try:
            outputs = interrupted_at(line, engine.step, outside="step")
        except KeyboardInterrupt:
            hits += 1
            continue
        for output in outputs:
            found[output.id].add(output)
    assert hits > 20
    assert [found[n].tokens for n in numbers] == [c.samples[0].tokens for c in want]
    assert whole(engine)


def test_beams_of_width_one_are_greedy_search_with_a_score() -> None:
    """Also beside others; it ends at its length."""
    request = Request(prompt(9), max_new=8, beams=BeamParams(1), eos_ids=frozenset())
    want = Engine(PLAIN, memory="8MiB").generate([replace(request, beams=None)])[0].samples[0]
    engine = Engine(PLAIN, memory="8MiB", poison=True)
    number = engine.add(request)
    for _ in range(3):
        engine.step()
    engine.add(prompt(7, 1), max_new=3, n=2)
    found = run(engine)[number]
    assert found[0].tokens == want.tokens
    assert found[0].score is not None


def test_what_was_promised_to_a_step_is_there_after_a_compaction() -> None:
    """Samples and beams in the smallest pools that accept them, whatever the prefix cache holds."""
    for length, pages in itertools.product((1, 7, 8, 9, 15, 16), (2, 3, 4, 5, 6)):
        for options in ({"n": 2, "sampling": Sampling(1.0)}, {"n": 3}, {"beams": BeamParams(2)}):
            engine = Engine(PLAIN, "fp16+page:8", memory=pages * 4096, poison=True)
            for seed in range(2):
                try:
                    found = engine.generate([prompt(length, seed)], max_new=9, **options)
                except CapacityError as error:
                    assert "even alone" in str(error)  # noqa: PT017
                    break
                assert {s.finish for s in found[0].samples} == {"length"}
            assert whole(engine)


def test_a_request_alone_gets_the_pages_that_lie_scattered() -> None:
    """Four page sizes, one request after another in a pool for one: slabs are freed by moving."""
    model, recipe, compacted = models.latent(), "perchannel:4,residual=7,raw+page:4", 0
    slab = Engine(model, recipe, memory=1 << 20).cache.pool.slab_bytes
    for seed in range(20):
        chance = random.Random(seed)
        engine = Engine(model, recipe, memory=4 * slab, poison=True)
        for _ in range(3):
            length, new = chance.randrange(1, 10), chance.randrange(1, 10)
            ids = tuple(chance.randrange(96) for _ in range(length))
            found = engine.generate([ids], max_new=new)[0].samples[0]
            assert found.finish == "length"
        compacted += engine.stats().counts.compacted
    assert compacted > 0


def test_beams_and_samples_without_a_cache() -> None:
    """Whole texts run again at every step; nobody is kept from it by others' waiting rows."""
    for step_tokens in (3, 512):
        engine = Engine(PLAIN, "none", memory="1MiB", step_tokens=step_tokens)
        want = Engine(PLAIN, "fp32", memory="8MiB").generate(
            [prompt(90)], max_new=3, beams=BeamParams(4, n=4)
        )[0]
        found = engine.generate([prompt(90)], max_new=3, beams=BeamParams(4, n=4))[0]
        assert [s.tokens for s in found.samples] == [s.tokens for s in want.samples]


def test_a_low_priority_does_not_starve() -> None:
    """It is passed 64 times by better ones that come later, and then goes first."""
    engine = Engine(PLAIN, memory="8MiB", max_running=1)
    engine.add(prompt(5), max_new=1)
    patient = engine.add(prompt(5, 1), max_new=1, priority=9)
    for count in range(200):
        engine.add(prompt(5, 2 + count % 5), max_new=1)
        if any(output.id == patient for output in engine.step()):
            break
    assert 60 < count < 70


def test_bad_requests_are_refused_before_they_are_queued() -> None:
    """Types and ranges that a step would trip over; the engine stays idle and usable."""
    engine = Engine(PLAIN, memory="8MiB")
    options: list[dict[str, object]] = [
        {"sample": 2**64},
        {"eos_ids": "ab"},
        {"eos_ids": 5},
        {"priority": "a"},
        {"priority": None},
        {"priority": 1.5},
        {"deadline": 10**400},
        {"deadline": "1"},
        {"deadline": float("nan")},
        {"domain": None},
        {"domain": "\ud800"},
        {"marks": 5},
        {"sampling": None},
        {"beams": 4},
        {"share": "no"},
        {"n": 1.5},
        {"stop": "abc"},
        {"nonsense": 1},
        {"prompt": prompt(3)},
    ]
    for option in options:
        with pytest.raises(KvikError):
            engine.add(prompt(5), **option)
    for bad in (5, None, [1.5], ["a"], [[1]]):
        with pytest.raises(KvikError):
            engine.add(bad)  # type: ignore[arg-type]
    with pytest.raises(KvikError):
        engine.generate([1, 2, 3])  # type: ignore[list-item]
    assert not engine.busy
    numbers = engine.generate([np.array(prompt(5)), torch.tensor(prompt(5))], max_new=3)  # type: ignore[list-item]
    assert numbers[0].samples[0].tokens == numbers[1].samples[0].tokens
    wrong: list[dict[str, object]] = [
        {"memory": 1.5e6},
        {"swap": -1},
        {"swap": True},
        {"step_tokens": "5"},
        {"step_tokens": True},
        {"max_running": None},
        {"kv": None},
        {"order": "size"},
    ]
    for option in wrong:
        with pytest.raises(KvikError):
            Engine(PLAIN, **{"memory": "8MiB", **option})  # type: ignore[arg-type]


def test_prefix_figures_count_requests_that_ran() -> None:
    """Hits and misses once for each admission; failed attempts count nothing."""
    engine = Engine(PLAIN, "fp16+page:4", memory="48KiB", step_tokens=64)
    engine.generate([prompt(30)], max_new=2)
    for index in range(6):
        engine.add(prompt(30) + prompt(4, index), max_new=20)
    run(engine)
    assert engine.prefixes is not None
    stats, counts = engine.prefixes.stats(), engine.stats().counts
    assert stats.hit_tokens == counts.reused
    assert stats.hits + stats.misses == 7 + counts.recomputed
