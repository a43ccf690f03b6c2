"""What goes wrong with one request, or in the middle of a step, costs nobody else anything."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.engine.common import prompt, whole
from tests.engine.test_engine import PLAIN, run

from kvik.cache import KVCache
from kvik.engine import choose, decoding, scheduler
from kvik.engine.beam import BeamParams
from kvik.engine.engine import Engine
from kvik.engine.generate import generate
from kvik.engine.identity import Text
from kvik.engine.prefix import PrefixCache
from kvik.engine.request import Request, Sample
from kvik.engine.sampler import Sampling
from kvik.engine.session import Session
from kvik.errors import KvikError
from kvik.models import load_model
from kvik.testing import models


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sampling(temperature=10**400),
        lambda: Sampling(repetition_penalty=10**400),
        lambda: Sampling(temperature=1.0, repetition_penalty=1e-320),
        lambda: Sampling(temperature=1.0, top_k=10**400),
        lambda: BeamParams(2, length_penalty=10**400),
        lambda: Request(prompt(5), deadline=10**400),
        lambda: Request(prompt(5), logprobs=10**400),
        lambda: Request(prompt(5), max_new=10**400),
        lambda: Request(prompt(5), priority=10**400),
        lambda: Request(prompt(5), sample=10**400),
    ],
)
def test_numbers_that_no_step_could_compute_with_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(KvikError):
        make()


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": Sampling(temperature=5e-324)},
        {"sampling": Sampling(temperature=1.7e308, top_k=2**62)},
        {"sampling": Sampling(temperature=1, top_p=5e-324, min_p=1)},
        {"sampling": Sampling(temperature=1, repetition_penalty=1e-3)},
        {"sampling": Sampling(temperature=1, repetition_penalty=1e3)},
        {"logprobs": 2**31 - 1},
        {"deadline": 5e-324},
        {"deadline": 10**9},
        {"beams": BeamParams(3, length_penalty=-10)},
        {"beams": BeamParams(3, length_penalty=10)},
        {"sample": 2**64 - 1},
        {"priority": -(2**63)},
        {"eos_ids": [-5, 10**40]},
    ],
)
def test_the_ends_of_every_range_run(options: dict) -> None:
    engine = Engine(PLAIN, memory="8MiB")
    other, extreme = engine.add(prompt(9), max_new=3), engine.add(prompt(5), max_new=3, **options)
    found = run(engine)
    assert found[other][0].finish == "length"
    assert found[extreme][0].finish in ("length", "deadline")
    assert whole(engine)


def test_a_fault_in_choosing_one_token_ends_that_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever it is; the step does not stumble over it again and again."""
    real = choose.sample

    def stumbles(*args: object, **options: object) -> int:
        if args[1].seed == 13:  # type: ignore[attr-defined]
            raise IndexError("out of bounds")
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(choose, "sample", stumbles)
    good = Request(prompt(9), Sampling(1.0, seed=1), max_new=4)
    engine = Engine(PLAIN, memory="8MiB")
    numbers = [engine.add(good), engine.add(replace(good, sampling=Sampling(1.0, seed=13)))]
    found = run(engine)
    assert found[numbers[0]][0].finish == "length"
    assert found[numbers[1]][0].finish == "error"
    assert "IndexError: out of bounds" in found[numbers[1]][0].reason
    assert whole(engine)


class Once:
    """Stands in for a function and fails at its ``at``-th call."""

    def __init__(self, real: Callable, at: int) -> None:
        self.real, self.left = real, at

    def __call__(self, *args: object, **options: object) -> object:
        self.left -= 1
        if not self.left:
            raise MemoryError("once")
        return self.real(*args, **options)


TINY = models.single()
THREE = Request(prompt(40), Sampling(1.0, seed=1), max_new=4, n=3, logprobs=0)
SEARCH = Request(prompt(30, 2), max_new=4, beams=BeamParams(3, n=2), eos_ids=frozenset())
PLACES: list[tuple[object, str]] = [
    (decoding, "choose"),
    (decoding, "alternatives"),
    (Text, "append"),
    (decoding.BeamSearch, "advance"),
    (decoding, "shared_bytes"),
    (KVCache, "fork"),
    (PrefixCache, "insert"),
]


@pytest.mark.parametrize(("where", "name"), PLACES)
def test_a_step_that_fails_in_the_middle_of_its_answers_loses_none(
    where: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples and beams, at every place that can run out of memory and at its first calls."""
    requests = [THREE, SEARCH, Request(prompt(9, 1), max_new=4)]
    want = [Engine(TINY, memory="1MiB").generate([r])[0].samples for r in requests]
    real = getattr(where, name)
    for at in (1, 2, 4):
        engine, errors = Engine(TINY, memory="1MiB", poison=True), 0
        numbers = [engine.add(request) for request in requests]
        found: dict[tuple[int, int], Sample] = defaultdict(Sample)
        once = Once(real, at)
        monkeypatch.setattr(where, name, lambda *a, _once=once, **o: _once(*a, **o))
        for _ in range(40):
            if not engine.busy:
                break
            try:
                for output in engine.step():
                    found[output.id, output.sample].add(output)
            except MemoryError:
                errors += 1
        monkeypatch.setattr(where, name, real)
        assert not engine.busy
        assert errors == (once.left <= 0)
        for number, samples in zip(numbers, want, strict=True):
            for index, sample in enumerate(samples):
                got = found[number, index]
                assert (got.tokens, got.finish) == (sample.tokens, sample.finish)
                assert got.logprobs == pytest.approx(sample.logprobs, abs=1e-5)
                assert got.score == pytest.approx(sample.score, abs=1e-5)
        assert whole(engine)


@pytest.mark.parametrize("steps", [0, 1, 3, 6])
def test_a_search_that_is_ended_reports_as_many_texts_as_were_asked(steps: int) -> None:
    """Those that it has found, then empty ones; one of them is the last."""
    free = Engine(TINY, memory="1MiB").generate(
        [Request(prompt(10), max_new=9, beams=BeamParams(4, n=4), eos_ids=frozenset())]
    )[0]
    end = free.samples[0].tokens[2]
    for n in (1, 4):
        engine = Engine(TINY, memory="1MiB")
        request = Request(prompt(10), max_new=9, beams=BeamParams(4, n=n), eos_ids={end})
        number = engine.add(request)
        for _ in range(steps):
            assert not engine.step()
        search = engine._jobs[number].search
        texts = [] if search is None else [h.tokens for h in search.result()]
        engine.abort(number)
        told = engine.step()
        assert [o.sample for o in told] == list(range(n))
        assert [o.last for o in told] == [False] * (n - 1) + [True]
        assert {o.finish for o in told} == {"cancelled"}
        assert [o.tokens for o in told] == texts + [()] * (n - len(texts))
        assert all((o.score is not None) == bool(o.tokens) for o in told)
        assert steps < 6 or texts
        assert whole(engine)


def test_a_whole_text_too_long_for_a_step_does_not_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a cache it runs only as the first of a step, and better ones always come first."""
    monkeypatch.setattr(scheduler, "PATIENCE", 10)
    engine = Engine(TINY, "none", memory="1MiB", step_tokens=16)
    better = {engine.add(prompt(2), max_new=2)}
    patient = engine.add(prompt(20, 1), max_new=2, priority=9)
    ran = told = 0
    for step in range(60):
        while len(better) < 2:
            better.add(engine.add(prompt(2, step), max_new=3 + step % 2))
        for output in engine.step():
            if output.last:
                better.discard(output.id)
            told += output.id == patient
        ran += patient in {job.id for job in engine.scheduler.running}
        if told == 2:
            break
    assert told == 2
    assert ran > 10


def test_a_running_request_does_not_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of a better one take all tokens of every step, and let it go first now and then."""
    monkeypatch.setattr(scheduler, "PATIENCE", 10)
    engine = Engine(TINY, "fp16+page:8", memory="1MiB", step_tokens=3)
    patient = engine.add(prompt(2), max_new=4, priority=9)
    engine.step()
    engine.add(prompt(1, 1), max_new=60, n=3)
    steps = [n for n in range(60) for output in engine.step() if output.id == patient]
    assert len(steps) == 3
    assert steps[2] - steps[1] == 11


@pytest.mark.parametrize("place", [0.05, 0.3, 0.6, 0.9, 0.999])
def test_a_damaged_file_costs_the_prefix_cache_nothing(place: float, tmp_path: Path) -> None:
    """Wherever a byte of it is wrong, no stored prefix makes room for it; a good one gets it."""
    source, path = Engine(TINY, "fp16+page:8", memory="1MiB"), tmp_path / "saved"
    source.generate([prompt(100)], max_new=2)
    source.save_prefix(path, prompt(100))
    data = path.read_bytes()
    target = Engine(TINY, "fp16+page:8", memory="64KiB")
    target.generate([prompt(100, seed) for seed in range(1, 9)], max_new=2)
    assert target.prefixes is not None
    before = target.prefixes.stats()
    at = int(place * len(data))
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(KvikError):
        target.load_prefix(path)
    assert target.prefixes.stats() == before
    path.write_bytes(data)
    assert target.load_prefix(path) == 100
    assert target.prefixes.stats().evictions > before.evictions


@pytest.mark.model
def test_a_text_cut_at_its_very_end_says_stop() -> None:
    """A stop text was held back for a longer one, which the length kept from coming."""
    smollm2 = load_model("smollm2-135m")
    ids = smollm2.tokenizer.encode("The capital of France is")
    free = Engine(smollm2, memory="8MiB").generate([ids], max_new=4, eos_ids=())[0].text
    stop = (free[-2:], free[-4:] + " and more")
    request = Request(ids, max_new=4, stop=stop, eos_ids=())
    sample = Engine(smollm2, memory="8MiB").generate([request])[0].samples[0]
    assert (sample.text, sample.finish) == (free[:-2], "stop")
    session = Session(smollm2, "fp16", max_tokens=50)
    events = generate(
        session, ids, Sampling(), max_new=4, stop=stop, tokenizer=smollm2.tokenizer, continues=True
    )
    *_, last = events
    assert last.finish == "stop"
