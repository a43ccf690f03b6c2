"""A chat feeds only what the cache lacks, and says what one long prompt would have said."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvik.engine.conversation import Conversation, chat_spelling, plain_spelling
from kvik.engine.generate import generate
from kvik.engine.sampler import Sampling
from kvik.engine.session import Session
from kvik.models import Model, load_model

USER = ["hi", "and <|im_end|> then?", "한국어 🙂", "bye"]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return load_model(tiny_model)


def _talk(model: Model, recipe: str, *, stop: tuple[str, ...] = ()) -> tuple[Session, list[int]]:
    """A session after four turns, and how many tokens each turn fed."""
    session = Session(model, recipe, max_tokens=4000)
    spell = chat_spelling(model.tokenizer)
    assert spell is not None
    conversation = Conversation(session, model.tokenizer, spell, system="Be brief.")
    fed = []
    for text in USER:
        ids = conversation.ask(text)
        fed.append(len(ids))
        events = list(
            generate(session, ids, Sampling(), max_new=9, stop=stop, tokenizer=model.tokenizer)
        )
        tokens = [e.token for e in events if e.token is not None]
        if events[-1].finish == "eos":
            tokens.pop()
        conversation.answer("".join(e.text for e in events), tokens)
    return session, fed


@pytest.mark.parametrize("recipe", ["fp32", "int8", "sinks:4+window:28", "none"])
def test_turns_feed_only_what_is_new(model: Model, recipe: str) -> None:
    session, fed = _talk(model, recipe)
    # A turn: what closes the answer, the message with its frame, the answer's opening, and the
    # last sampled token, which no step had fed.
    frame = len("\n") + len("user\n") + len("\n") + len("assistant\n") + 4 + 1
    bounds = [len(text.encode()) + frame for text in USER]
    assert all(count <= bound for count, bound in zip(fed[1:], bounds[1:], strict=True)), fed
    fresh = Session(model, recipe, max_tokens=4000)
    last = fresh.feed(session.tokens)[-1]
    again = Session(model, recipe, max_tokens=4000)
    again.feed(session.tokens[:-1])
    assert (again.feed(session.tokens[-1:])[-1] - last).abs().max() < 1e-4


def test_a_cut_answer_makes_the_next_turn_go_back(model: Model) -> None:
    whole, _ = _talk(model, "fp32")
    answer = model.tokenizer.decode(whole.tokens)
    stop = answer[answer.rindex("assistant\n") + 12 :][:1]
    session, _ = _talk(model, "fp32", stop=(stop,))
    spell = chat_spelling(model.tokenizer)
    assert spell is not None
    # What the cache holds is one spelling of the whole history.
    assert model.tokenizer.decode(session.tokens).count("assistant") == len(USER)


def test_reset_keeps_the_system_message_only(model: Model) -> None:
    session = Session(model, "fp16", max_tokens=400)
    conversation = Conversation(
        session, model.tokenizer, plain_spelling(model.tokenizer), system="Rules."
    )
    session.feed(conversation.ask("one"))
    conversation.reset()
    assert session.tokens == []
    assert conversation.messages == [{"role": "system", "content": "Rules."}]


def test_plain_turns_are_one_running_text(model: Model) -> None:
    session = Session(model, "fp16", max_tokens=400)
    conversation = Conversation(session, model.tokenizer, plain_spelling(model.tokenizer))
    session.feed(conversation.ask("Once"))
    conversation.answer(" upon", model.tokenizer.encode(" upon", bos=False))
    session.feed(conversation.ask("a time"))
    assert model.tokenizer.decode(session.tokens) == "Once upon\na time"
