"""Streamed text is the decoded text, cut at the first stop string, and never shows too much."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvik.engine.text import TextStream
from kvik.errors import KvikError
from kvik.models import sources
from kvik.models.tokenizer import Tokenizer, Vocabulary


class Bytes:
    """The smallest real tokenizer: a token for each byte, some for pairs, one that is special."""

    pairs = (b"ab", b"bc", "é".encode(), b" a", b"\n\n", "한".encode(), "👍".encode()[:2])

    def encode(self, text: str, special: bool) -> list[int]:
        return list(text.encode())


def tiny(drop_space: bool = False) -> Tokenizer:
    pieces = [*(bytes([byte]) for byte in range(256)), *Bytes.pairs, b"<end>", None]
    return Tokenizer(
        Bytes(),
        Vocabulary(
            size=len(pieces),
            spell=pieces.__getitem__,
            control={"<end>": len(pieces) - 2},
            bos_id=None,
            eos_ids=frozenset({len(pieces) - 2}),
            prefix=(),
            drop_space=drop_space,
            chat_template=None,
        ),
    )


@cache
def smollm() -> Tokenizer:
    return Tokenizer.from_gguf(sources.resolve("smollm2-135m"))


def cut(text: str, stop: Sequence[str]) -> str:
    return text[: min((at for s in stop if (at := text.find(s)) >= 0), default=len(text))]


def check(tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str]) -> None:
    """Pieces join to the cut text; what was shown so far is never taken back or past a stop."""
    wanted = cut(tokenizer.decode(ids), stop)
    stream = TextStream(tokenizer, stop)
    shown = ""
    for token in ids:
        was_stopped = stream.stopped
        piece = stream.push(token)
        assert not (was_stopped and piece)
        shown += piece
        assert wanted.startswith(shown)
    shown += stream.finish()
    assert shown == wanted
    assert stream.stopped == any(s in tokenizer.decode(ids) for s in stop)
    assert stream.finish() == ""


STOPS = st.lists(st.text("abc \né한", min_size=1, max_size=4), max_size=3)


@given(st.lists(st.integers(0, 263) | st.sampled_from(list(b"abc \n"))), STOPS, st.booleans())
@settings(max_examples=400, deadline=None)
def test_pieces_join_to_the_decoded_text_cut_at_the_first_stop(
    ids: list[int], stop: list[str], drop_space: bool
) -> None:
    check(tiny(drop_space), ids, stop)


@given(st.text("abc \né한👍", max_size=30), STOPS)
@settings(max_examples=300, deadline=None)
def test_the_same_for_texts_byte_by_byte(text: str, stop: list[str]) -> None:
    check(tiny(), list(text.encode()), stop)


@pytest.mark.model
def test_the_same_for_random_ids_of_a_real_tokenizer() -> None:
    tokenizer = smollm()
    rng = random.Random(5)
    for _ in range(300):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(1, 60))]
        text = tokenizer.decode(ids)
        stop = []
        for _ in range(rng.randrange(3)):
            at = rng.randrange(max(len(text), 1))
            stop += [text[at : at + rng.randrange(1, 12)]] if text[at:] else []
        check(tokenizer, ids, stop)


@pytest.mark.model
def test_real_text_streams_back_unchanged() -> None:
    text = "Grüße! 👩‍👩‍👧‍👦 안녕하세요\n\n\tdef f():  # ½\n" * 20
    check(smollm(), smollm().encode(text), [])
    check(smollm(), smollm().encode(text), ["하세요\n\n\tdef"])


def test_a_character_is_shown_when_its_last_byte_comes() -> None:
    stream = TextStream(tiny())
    assert [stream.push(byte) for byte in "a👍b".encode()] == ["a", "", "", "", "👍", "b"]
    assert stream.finish() == ""


def test_an_unfinished_character_at_the_end_becomes_the_replacement_character() -> None:
    stream = TextStream(tiny())
    assert [stream.push(byte) for byte in "x👍".encode()[:-1]] == ["x", "", "", ""]
    assert stream.finish() == "\ufffd"


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    stream = TextStream(tiny(), ["abc", "zz"])
    assert [stream.push(byte) for byte in b"xabbabz-"] == [
        "x",
        "",
        "",
        "abb",
        "",
        "",
        "abz"[:2],
        "z-",
    ]
    assert stream.finish() == ""
    assert not stream.stopped


def test_a_stop_string_ends_the_stream_with_the_token_that_completes_it() -> None:
    stream = TextStream(tiny(), ["bca"])
    assert [stream.push(token) for token in (ord("a"), 257, ord("a"), ord("d"))] == [
        "a",
        "",
        "",
        "",
    ]
    assert stream.stopped
    assert stream.finish() == ""


def test_an_earlier_longer_stop_string_that_may_still_come_is_waited_for() -> None:
    stream = TextStream(tiny(), ["abcd", "bc"])
    assert [stream.push(byte) for byte in b"abc"] == ["", "", ""]
    assert not stream.stopped
    assert stream.push(ord("d")) == ""
    assert stream.stopped
    stream = TextStream(tiny(), ["abcd", "bc"])
    assert [stream.push(byte) for byte in b"abcx"] == ["", "", "", "a"]
    assert stream.stopped


def test_special_tokens_are_shown_only_on_request() -> None:
    end = tiny().control["<end>"]
    assert TextStream(tiny()).push(end) == ""
    assert TextStream(tiny(), skip_special=False).push(end) == "<end>"
    stream = TextStream(tiny(), ["<end>"], skip_special=False)
    assert (stream.push(end), stream.stopped) == ("", True)


def test_a_text_that_goes_on_from_a_prompt_keeps_its_first_space() -> None:
    ids = list(b" a b")
    for continues, wanted in ((False, "a b"), (True, " a b")):
        stream = TextStream(tiny(drop_space=True), continues=continues)
        assert "".join(map(stream.push, ids)) + stream.finish() == wanted


def test_bad_stop_strings_and_ids_are_refused() -> None:
    with pytest.raises(KvikError, match="list"):
        TextStream(tiny(), "ab")
    with pytest.raises(KvikError, match="empty"):
        TextStream(tiny(), ["a", ""])
    for token in (-1, tiny().vocab_size - 1, tiny().vocab_size):
        with pytest.raises(KvikError, match="not in the vocabulary"):
            TextStream(tiny()).push(token)
