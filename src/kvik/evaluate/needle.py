"""A five-digit number hidden in noise, asked for at the end: hit or miss, and how likely it was.

The noise is the library text. Models with a chat template are asked in it, others complete plain
text; in both cases the first words of the answer are given, so that only the number is theirs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvik.errors import KvikError

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
SHARES = (0.25, 0.5, 1.0)  # of the context: the lengths of a map
ANSWER_TOKENS = 8
FACT = "The secret number of the lighthouse is {number}."
QUESTION = "What is the secret number of the lighthouse?"
ANSWER = "The secret number of the lighthouse is"


class Encodes(Protocol):
    """What is asked of a tokenizer here."""

    def encode(self, text: str, *, bos: bool = ..., special: bool = ...) -> list[int]:
        """Token ids of a text."""

    def decode(self, ids: Sequence[int], *, skip_special: bool = ...) -> str:
        """The text of token ids."""


@dataclass(frozen=True)
class Needle:
    """One question: the prompt's token ids, the digits that count as a hit, and their tokens.

    ``length`` is what the prompt was cut to, ``depth`` the share of the noise before the fact.
    """

    ids: list[int]
    number: str
    answer: list[int]
    length: int
    depth: float


@dataclass(frozen=True)
class Asked:
    """``hit``: greedy decoding gave the number; ``logprob``: ln of the number's probability."""

    hit: bool
    logprob: float


def needle_map(
    tokenizer: Encodes,
    noise: str,
    context: int,
    *,
    chat: Callable[[str], list[int]] | None,
) -> list[Needle]:
    """Needles at every depth for each length that is a share of the context and long enough.

    Raises KvikError when the context itself is too short.
    """
    lengths = sorted({int(context * share) for share in SHARES})
    found = [make_needles(tokenizer, noise, context, chat=chat, seed=context)]
    for length in reversed(lengths[:-1]):
        try:
            found.append(make_needles(tokenizer, noise, length, chat=chat, seed=length))
        except KvikError:
            break
    return [needle for part in reversed(found) for needle in part]


def template(tokenizer: Encodes, chat: Callable[[str], list[int]] | None) -> str:
    """The prompt as the model reads it, with names in braces for what varies."""
    ids = _prompt(tokenizer, "{noise}", FACT, "{noise}", chat)
    return tokenizer.decode(ids, skip_special=False)


def make_needles(
    tokenizer: Encodes,
    noise: str,
    context: int,
    *,
    chat: Callable[[str], list[int]] | None,
    depths: Sequence[float] = DEPTHS,
    seed: int = 0,
) -> list[Needle]:
    """Prompts of at most ``context`` tokens with the fact at each depth of the noise.

    ``chat`` spells a user's message by the model's template, up to where the answer begins; None
    makes a plain completion. Raises KvikError when the context is too short to hide anything.
    """
    draw = random.Random(seed)
    needles = []
    for i, depth in enumerate(depths):
        number = str(draw.randrange(10_000, 100_000))
        fact = FACT.format(number=number)
        overhead = len(_prompt(tokenizer, "", fact, "", chat))
        room = context - overhead - 8  # tokens merge differently at the seams
        if room < 16:
            raise KvikError(f"a context of {context} tokens is too short for the needle test")
        ids = tokenizer.encode(noise, bos=False, special=False)
        start = (len(ids) - room) * i // max(len(depths), 1)
        cut = int(room * depth)
        before = tokenizer.decode(ids[start : start + cut])
        after = tokenizer.decode(ids[start + cut : start + room])
        prompt = _prompt(tokenizer, before, fact, after, chat)
        needles.append(Needle(prompt, number, _answer(tokenizer, number), context, depth))
    return needles


def _answer(tokenizer: Encodes, number: str) -> list[int]:
    """The tokens of the number as they follow the first words of the answer."""
    before = tokenizer.encode(ANSWER, bos=False, special=False)
    return tokenizer.encode(f"{ANSWER} {number}", bos=False, special=False)[len(before) :]


def _prompt(
    tokenizer: Encodes, before: str, fact: str, after: str, chat: Callable[[str], list[int]] | None
) -> list[int]:
    text = f"{before}\n\n{fact}\n\n{after}\n\n"
    if chat is None:
        plain = f"{text}Question: {QUESTION}\nAnswer: {ANSWER}"
        return tokenizer.encode(plain, bos=True, special=False)
    return chat(text + QUESTION) + tokenizer.encode(ANSWER, bos=False, special=False)


def ask(session: Any, tokenizer: Encodes, needle: Needle) -> Asked:
    """Greedy decoding after the prompt, and the probability of the number as it stands.

    ``session`` needs room for one fork and for :func:`room` tokens.
    """
    logits = session.feed(needle.ids, logits="last")
    twin = session.fork()
    told = _greedy(twin, logits)
    twin.close()
    rows = [logits[-1:]]
    if len(needle.answer) > 1:
        rows.append(session.feed(needle.answer[:-1], logits="all"))
    likely = sum(
        float(row.double().log_softmax(-1)[token])
        for row, token in zip((r for part in rows for r in part), needle.answer, strict=True)
    )
    if not math.isfinite(likely):
        raise KvikError("the model's logits are not finite numbers with this cache")
    text = tokenizer.decode(told).replace(" ", "").replace(",", "")
    return Asked(needle.number in text, likely)


def room(needle: Needle) -> int:
    """Tokens that a session needs in order to be asked."""
    return len(needle.ids) + max(ANSWER_TOKENS, len(needle.answer))


def _greedy(session: Any, logits: Any) -> list[int]:
    told: list[int] = []
    while True:
        told.append(int(logits[-1].argmax()))
        if len(told) == ANSWER_TOKENS:
            return told
        logits = session.feed(told[-1:], logits="last")
