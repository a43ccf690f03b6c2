"""What goes wrong with one request, or in the middle of a step, costs nobody else anything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.engine.common import prompt, whole
from tests.engine.test_engine import PLAIN, run

from kvik.engine import choose
from kvik.engine.beam import BeamParams
from kvik.engine.engine import Engine
from kvik.engine.request import Request
from kvik.engine.sampler import Sampling
from kvik.errors import KvikError


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": {"temperature": 10**400}},
        {"sampling": {"repetition_penalty": 10**400}},
        {"sampling": {"repetition_penalty": 1e-320, "temperature": 1.0}},
        {"sampling": {"top_k": 10**400, "temperature": 1.0}},
        {"beams": {"width": 2, "length_penalty": 10**400}},
        {"deadline": 10**400},
        {"logprobs": 10**400},
        {"max_new": 10**400},
        {"priority": 10**400},
        {"sample": 10**400},
    ],
)
def test_numbers_that_no_step_could_compute_with_are_refused(options: dict) -> None:
    with pytest.raises(KvikError):
        if "sampling" in options:
            options = {"sampling": Sampling(**options["sampling"])}
        if "beams" in options:
            options = {"beams": BeamParams(**options["beams"])}
        Request(prompt(5), **options)


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
