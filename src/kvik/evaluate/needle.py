"""A five-digit number hidden in noise, asked for at the end: hit or miss, no judge.

The noise is the library text. Models with a chat template are asked in it, others complete plain
text; in both cases the first words of the answer are given, so that only the number is theirs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvik.errors import KvikError

DEPTHS = (0.1, 0.5, 0.9)
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
    """One question: the prompt's token ids and the digits that count as a hit."""

    ids: list[int]
    number: str
    depth: float


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
        needles.append(Needle(_prompt(tokenizer, before, fact, after, chat), number, depth))
    return needles


def _prompt(
    tokenizer: Encodes, before: str, fact: str, after: str, chat: Callable[[str], list[int]] | None
) -> list[int]:
    text = f"{before}\n\n{fact}\n\n{after}\n\n"
    if chat is None:
        plain = f"{text}Question: {QUESTION}\nAnswer: {ANSWER}"
        return tokenizer.encode(plain, bos=True, special=False)
    return chat(text + QUESTION) + tokenizer.encode(ANSWER, bos=False, special=False)


def ask(session: Any, tokenizer: Encodes, needle: Needle) -> bool:
    """Whether greedy decoding after the prompt gives the number."""
    logits = session.feed(needle.ids, logits="last")
    answer: list[int] = []
    while True:
        answer.append(int(logits[-1].argmax()))
        if len(answer) == ANSWER_TOKENS:
            break
        logits = session.feed(answer[-1:], logits="last")
    text = tokenizer.decode(answer)
    return needle.number in text.replace(" ", "").replace(",", "")
