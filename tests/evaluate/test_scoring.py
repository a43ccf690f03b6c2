"""Passages scored together hold what each holds alone, and their beginnings are computed once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvik.engine.session import Session
from kvik.errors import KvikError
from kvik.evaluate.scoring import Passage, Work, score_passages
from kvik.models import Model, load_model

RECIPES = ["fp32", "int8/int4", "fp32+window:8", "int8+sinks:4+window:12", "none"]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return load_model(tiny_model)


def _passages() -> list[Passage]:
    """Two contexts that begin alike with four answers each, and what else there can be."""
    draw = torch.Generator().manual_seed(1)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, 256, (count,), generator=draw).tolist())

    head, one, two = ids(20), ids(15), ids(30)
    answers = [ids(n) for n in (1, 3, 5, 70)]
    found = [Passage((*head, *tail, *a), len(a)) for tail in (one, two) for a in answers]
    again = found[2]
    sibling = Passage((*again.ids[:-1], 7), 2)  # parts from it in the middle of the answer
    return [*found, again, sibling, Passage(ids(9), 8)]


def _alone(model: Model, recipe: str, passage: Passage) -> tuple[float, bool]:
    session = Session(model, recipe, max_tokens=len(passage.fed))
    rows = session.feed(passage.fed, logits="all")[passage.start :].double()
    targets = torch.tensor(passage.ids[-passage.scored :])
    logs = rows.log_softmax(1).gather(1, targets[:, None])
    return float(logs.sum()), bool((rows.argmax(1) == targets).all())


@pytest.mark.parametrize("recipe", RECIPES)
def test_sharing_changes_no_score(model: Model, recipe: str) -> None:
    passages = _passages()
    found = sorted(score_passages(model, recipe, passages, Work()))
    assert [score.passage for score in found] == list(range(len(passages)))
    for score, passage in zip(found, passages, strict=True):
        value, greedy = _alone(model, recipe, passage)
        assert score.loglikelihood == pytest.approx(value, abs=2e-3)
        assert score.greedy == greedy


@pytest.mark.parametrize("recipe", RECIPES[:-1])
def test_what_is_shared_is_computed_once(model: Model, recipe: str) -> None:
    passages = [Passage((*range(100), 7, answer, 9), 2) for answer in range(4)]
    work = Work()
    list(score_passages(model, recipe, passages, work))
    assert work.asked == 4 * 102
    # 100 tokens of context but the last, and for each answer that one, 7 and its own token.
    assert work.computed <= 102 + 3 * 3


def test_a_greedy_answer_is_known_as_one(model: Model) -> None:
    prompt = tuple(range(40))
    session = Session(model, "int8", max_tokens=64)
    answer: list[int] = []
    logits = session.feed(prompt)
    for _ in range(6):
        answer.append(int(logits[-1].argmax()))
        logits = session.feed(answer[-1:])
    wrong = [*answer[:3], answer[3] ^ 1, *answer[4:]]
    found = sorted(
        score_passages(model, "int8", [Passage((*prompt, *a), 6) for a in (answer, wrong)], Work())
    )
    assert [score.greedy for score in found] == [True, False]
    assert found[0].loglikelihood > found[1].loglikelihood


@pytest.mark.parametrize("scored", [0, 3, 4])
def test_something_is_scored_and_something_comes_before(scored: int) -> None:
    with pytest.raises(KvikError, match="cannot be scored"):
        Passage((1, 2, 3), scored)


def test_no_passages_are_no_work(model: Model) -> None:
    assert list(score_passages(model, "fp32", [], Work())) == []
