"""The loop feeds, samples, streams and ends as asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvik.engine.generate import Event, generate
from kvik.engine.sampler import Sampling
from kvik.engine.session import Session
from kvik.errors import KvikError
from kvik.models import Model, load_model


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return load_model(tiny_model)


def _events(model: Model, text: str = "hello", **options: Any) -> tuple[Session, list[Event]]:
    session = Session(model, options.pop("recipe", "fp32"), max_tokens=options.pop("room", 500))
    settings = {"max_new": 20, "tokenizer": model.tokenizer} | options
    sampling = settings.pop("sampling", Sampling())
    ids = model.tokenizer.encode(text, bos=False)
    return session, list(generate(session, ids, sampling, **settings))


def test_greedy_text_is_the_same_with_and_without_a_cache(model: Model) -> None:
    texts = {
        recipe: "".join(e.text for e in _events(model, recipe=recipe)[1])
        for recipe in ("fp32", "none")
    }
    assert texts["fp32"] == texts["none"]


def test_last_token_is_sampled_but_not_fed(model: Model) -> None:
    session, events = _events(model, max_new=7)
    tokens = [e.token for e in events]
    assert len(events) == 7
    assert events[-1].finish == "length"
    assert all(e.finish is None for e in events[:-1])
    assert session.tokens == model.tokenizer.encode("hello", bos=False) + tokens[:-1]
    assert "".join(e.text for e in events) == model.tokenizer.decode(tokens)  # type: ignore[arg-type]


def test_room_of_the_session_ends_it_too(model: Model) -> None:
    session, events = _events(model, room=9)
    assert events[-1].finish == "length"
    assert len(session.tokens) == 9


def test_cancel_between_parts_of_the_prompt(model: Model) -> None:
    asked = iter([False, True])
    session, events = _events(model, "x" * 1200, room=1300, cancelled=lambda: next(asked))
    assert events == [Event(None, "", "cancelled")]
    assert len(session.tokens) == 512


def test_empty_prompt_and_no_room_are_refused(model: Model) -> None:
    with pytest.raises(KvikError, match="prompt is empty"):
        _events(model, "")
    with pytest.raises(KvikError, match="at least one new token"):
        _events(model, max_new=0)


def test_draws_depend_on_the_position_not_on_the_turns(model: Model) -> None:
    warm = Sampling(temperature=1.2, seed=5)
    session, events = _events(model, sampling=warm, max_new=12)
    tokens = [e.token for e in events if e.token is not None]
    # The same text fed in two calls draws the same tokens.
    twin = Session(model, "fp32", max_tokens=500)
    head = model.tokenizer.encode("hello", bos=False) + tokens[:5]
    rest = list(generate(twin, head, warm, max_new=7, tokenizer=model.tokenizer))
    assert [e.token for e in rest] == tokens[5:]
    assert session.tokens == twin.tokens
