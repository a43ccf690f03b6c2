"""What tasks ask, that sharing and cutting change no number, and values against plain sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from kvik.engine.session import Session
from kvik.errors import KvikError
from kvik.evaluate.sweep.cells import Job, work
from kvik.evaluate.tasks import REFERENCE, Ask, Material, Subject, Task, Unit, find
from kvik.evaluate.tasks.base import halving
from kvik.evaluate.tasks.branches import visit
from kvik.evaluate.tasks.recall import Probe, Recall
from kvik.evaluate.text import library_text
from kvik.models import Model, load_model

CONTEXT = 900
RECALLS = [name for name, task in Task.registry.items() if task.kind == "recall"]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Iterator[Model]:
    with torch.no_grad():
        yield load_model(tiny_model)


@pytest.fixture(scope="module")
def subject(model: Model) -> Subject:
    return Subject(model, Material(model.tokenizer, library_text()[:30_000]))


def first(name: str, context: int = CONTEXT, scored: int | None = None) -> Unit:
    return next(iter(find(name).units(Ask(contexts=[context], samples=1, scored=scored))))


def log_softmax(row: torch.Tensor) -> torch.Tensor:
    return row.double() - torch.logsumexp(row.double(), -1, keepdim=True)


def asked(subject: Subject, name: str) -> tuple[list[Probe], list[Probe]]:
    task = find(name)
    assert isinstance(task, Recall)
    return task.probes(subject.material, first(name)), task.decoys(subject.material, first(name))


@pytest.mark.parametrize("name", RECALLS)
def test_prompts_fit_and_only_what_is_hidden_differs_from_the_decoys(
    subject: Subject, name: str
) -> None:
    probes, decoys = asked(subject, name)
    assert probes == asked(subject, name)[0], "the same in every run"
    assert [p.at for p in probes] == sorted(p.at for p in probes)
    for probe, decoy in zip(probes, decoys, strict=True):
        assert probe.answer == decoy.answer
        assert probe.prompt != decoy.prompt
        assert len(probe.prompt) + max(len(probe.answer), probe.steps) <= find(name).tokens(
            first(name)
        )
        hidden, other = (tuple(p.prompt) for p in (probe, decoy))
        answer = tuple(probe.answer)
        if name not in ("tracking", "words", "multivalue"):  # whose answers stand in pieces
            assert any(hidden[i : i + len(answer)] == answer for i in range(len(hidden)))
            assert not any(other[i : i + len(answer)] == answer for i in range(len(other)))


def test_a_needle_stands_at_its_depth(subject: Subject) -> None:
    for probe in asked(subject, "needle")[0]:
        text = subject.model.tokenizer.decode(probe.prompt)
        at = text.index("The secret number of the") / text.rindex("What is the secret")
        assert at == pytest.approx(probe.at, abs=0.05)


def test_a_distance_is_counted_in_tokens(subject: Subject) -> None:
    for probe in asked(subject, "distance")[0]:
        shown = list(probe.prompt[-8:])
        places = [i for i in range(len(probe.prompt) - 8) if list(probe.prompt[i : i + 8]) == shown]
        assert len(probe.prompt) - places[0] == probe.at


@pytest.mark.parametrize("recipe", ["fp32", "int4", "fp32+sinks:2+window:40"])
def test_shared_beginnings_change_no_number(subject: Subject, recipe: str) -> None:
    probes = asked(subject, "needle")[0][:3]
    prompts = [*(p.prompt for p in probes), probes[0].prompt[:-5], probes[0].prompt]
    session = subject.session(recipe, CONTEXT, forks=len(prompts))
    seen = {}
    for i, branch, logits in visit(session, prompts, 100):
        assert branch.tokens == list(prompts[i])
        seen[i] = logits.clone()
    assert sorted(seen) == list(range(len(prompts)))
    for i, prompt in enumerate(prompts):
        alone = Session(subject.model, recipe, max_tokens=CONTEXT).feed(prompt)
        assert (log_softmax(alone) - log_softmax(seen[i])).abs().max() < 1e-3
    session.close()
    stats = session.cache.pool.stats()
    assert stats.used == 0, "every branch gave its pages back"


def test_values_of_recall_are_those_of_a_plain_session(subject: Subject) -> None:
    unit, task = first("needle"), find("needle")
    dense, _ = task.reference(subject, unit)
    probes, decoys = asked(subject, "needle")
    for item, probe, decoy in zip(dense["items"], probes, decoys, strict=True):
        for name, one in (("logp", probe), ("floor", decoy)):
            session = Session(subject.model, REFERENCE, max_tokens=CONTEXT)
            rows = session.feed([*one.prompt, *one.answer], logits="all")
            table = log_softmax(rows[len(one.prompt) - 1 : -1])
            expected = sum(table[i, t].item() for i, t in enumerate(one.answer))
            assert item[name] == pytest.approx(expected, abs=1e-3)
        assert item["hit"] == float(table.argmax(-1).tolist() == list(one.answer)) == 0.0


def test_what_a_model_writes_is_searched_for_the_expected_texts(subject: Subject) -> None:
    probe = asked(subject, "words")[0][0]
    session = Session(subject.model, "fp32", max_tokens=CONTEXT)
    token, written = int(session.feed(probe.prompt)[-1].argmax()), []
    for _ in range(12):
        written.append(token)
        token = int(session.feed([token])[-1].argmax())
    text = subject.model.tokenizer.decode(written)
    from kvik.evaluate.tasks.recall import recall

    for expects, share in (((text[2:5],), 1.0), ((text[1:4].upper(), "\0never"), 0.5)):
        asks = Probe(0.0, probe.prompt, probe.answer, expects, 12)
        assert recall(subject, "fp32", [asks])["items"][0]["hit"] == share


@pytest.mark.parametrize("name", ["kl", "length", "stream", "drift"])
def test_the_dense_cache_against_itself_is_zero_and_a_window_is_not(
    subject: Subject, name: str
) -> None:
    unit = first(name, 200, 40)
    if name == "stream":
        unit = Unit(unit.task, {**unit.where, "scored": 40})
    cells = list(work(subject, Job(unit, (REFERENCE, "fp32+window:16"), repeat=True)))
    by = {(c["recipe"], c["repeat"]): c["values"] for c in cells}
    assert len(by[REFERENCE, False]["kl"]) == 40
    assert max(by[REFERENCE, False]["kl"]) == 0
    assert max(by[REFERENCE, True]["kl"]) < 1e-6, "other steps, the same predictions"
    assert np.mean(by["fp32+window:16", False]["kl"]) > 1e-3
    assert by["fp32+window:16", False]["kv_bytes"] < by[REFERENCE, False]["kv_bytes"] / 3


def test_drift_follows_what_the_dense_cache_wrote(subject: Subject) -> None:
    unit, task = first("drift", 100, 12), find("drift")
    _, (tokens, logits) = task.reference(subject, unit)
    again = task.reference(subject, unit)[1][0]
    assert tokens == again
    assert len(tokens) == len(logits) == 12
    session = Session(subject.model, REFERENCE, max_tokens=112)
    session.feed(subject.material.excerpt(100, 0))
    rows = session.feed(tokens[:-1], logits="all").numpy()
    assert np.abs(rows - logits[1:]).max() < 1e-3


def test_a_recipe_that_fails_fails_alone(subject: Subject) -> None:
    cells = list(work(subject, Job(first("kl", 100, 8), ("fp32", "int8", "nonsense"), False)))
    assert ["values" in c for c in cells] == [True, True, False]
    assert "nonsense" in cells[2]["error"]


def test_samples_are_nested_and_spread() -> None:
    assert [halving(i) for i in range(5)] == [0, 0.5, 0.25, 0.75, 0.125]


def test_a_text_that_is_too_short_is_refused(model: Model) -> None:
    material = Material(model.tokenizer, "Too short.")
    for name in set(Task.registry) - {"middle"}:  # which makes its own text
        with pytest.raises(KvikError, match=r"give a larger --context|give a longer --text"):
            find(name).check(material, first(name, 500))


def test_a_question_can_stand_before_the_context(subject: Subject, model: Model) -> None:
    late, early = (
        Material(model.tokenizer, library_text()[:30_000], early=early).spelling
        for early in (False, True)
    )
    text = model.tokenizer.decode(early.prompt("DOCUMENT", "QUESTION?", "The"))
    assert text.index("QUESTION?") < text.index("DOCUMENT") < text.rindex("QUESTION?")
    text = model.tokenizer.decode(late.prompt("DOCUMENT", "QUESTION?", "The"))
    assert text.count("QUESTION?") == 1
    assert text.index("DOCUMENT") < text.index("QUESTION?")
