"""A five-digit number hidden in noise, asked for at the end: hit or miss, and how likely it was."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvik.errors import KvikError
from kvik.evaluate.tasks.facts import PLACES, fact, lead, numbers, question
from kvik.evaluate.tasks.needle import DEPTHS

if TYPE_CHECKING:
    from kvik.evaluate.tasks.spelling import Spelling
    from kvik.models.tokenizer import Tokenizer

SHARES = (0.25, 0.5, 1.0)  # of the context: the lengths of a map
ANSWER_TOKENS = 8
PLACE = PLACES[0]


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


def needle_map(spelling: Spelling, noise: Sequence[int], context: int) -> list[Needle]:
    """Needles at every depth for each length that is a share of the context and long enough.

    Raises KvikError when the context itself is too short.
    """
    lengths = sorted({int(context * share) for share in SHARES})
    found = [make_needles(spelling, noise, context)]
    for length in reversed(lengths[:-1]):
        try:
            found.append(make_needles(spelling, noise, length))
        except KvikError:
            break
    return [needle for part in reversed(found) for needle in part]


def template(spelling: Spelling) -> str:
    """The prompt as the model reads it, with names in braces for what varies."""
    text = f"{{noise}}\n\n{fact(PLACE, '{number}')}\n\n{{noise}}"
    return spelling.text(text, question(PLACE), lead(PLACE))


def make_needles(
    spelling: Spelling, noise: Sequence[int], context: int, depths: Sequence[float] = DEPTHS
) -> list[Needle]:
    """Prompts of at most ``context`` tokens with the fact at each depth of the noise.

    Each depth has another number and another part of the noise. Raises KvikError when the context
    is too short to hide anything.
    """
    needles = []
    drawn = numbers(random.Random(context), len(depths))
    for i, (depth, number) in enumerate(zip(depths, drawn, strict=True)):
        start = max(0, len(noise) - context) * i // len(depths)
        part = noise[start : start + context]
        said = [(depth, fact(PLACE, number))]
        try:
            ids = spelling.fit(part, said, question(PLACE), lead(PLACE), context)
        except KvikError:
            raise KvikError(
                f"a context of {context} tokens is too short for the needle test"
            ) from None
        answer = spelling.answer(lead(PLACE), number)
        needles.append(Needle(ids, number, answer, context, depth))
    return needles


def ask(session: Any, tokenizer: Tokenizer, needle: Needle) -> Asked:
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
