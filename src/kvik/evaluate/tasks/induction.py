"""Recall of random tokens, which asks no more of a model than to go on as before.

A string of rare tokens stands somewhere in the text and begins once more at its end; what is scored
is the rest of it (induction heads: Olsson et al. 2022, arXiv 2209.11895). It works with any model,
base or chat, and puts the string at an exact place.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from kvik.errors import KvikError
from kvik.evaluate.tasks.base import Ask, Material, Unit
from kvik.evaluate.tasks.needle import DEPTHS
from kvik.evaluate.tasks.recall import Probe, Recall

STRING = 16
SHOWN = STRING // 2


class _RandomTokens(Recall):
    """What both tasks have in common; ``places`` says where a string begins, by token."""

    samples = 4

    @abstractmethod
    def places(self, unit: Unit, room: int) -> list[tuple[float, int]]:
        """(at, tokens before the string) for ``room`` tokens of text, ``at`` ascending."""

    def hidden(self, material: Material, unit: Unit, *, decoy: bool) -> list[Probe]:
        room = _room(unit.where["context"], len(material.head))
        text = material.excerpt(room, unit.where["sample"])
        draw, rare = material.draw(unit), _rare(material)
        made = []
        for at, before in self.places(unit, room):
            string, other = draw.sample(rare, STRING), draw.sample(rare, STRING)
            hidden = other if decoy else string
            ids = [*material.head, *text[:before], *hidden, *text[before:], *string[:SHOWN]]
            made.append(Probe(at, ids, string[SHOWN:], by_token=True))
        return made


class Induction(_RandomTokens):
    """At shares of the context."""

    name = "induction"
    meaning = "random tokens to be continued: a map of depth by context, for any model"
    contexts = (500, 1000, 2000)

    uses = frozenset({"depths"})

    def options(self, ask: Ask) -> dict[str, Any]:
        return {"depths": list(ask.depths or DEPTHS)}

    def places(self, unit: Unit, room: int) -> list[tuple[float, int]]:
        return [(depth, round(depth * room)) for depth in unit.where["depths"]]


class Distance(_RandomTokens):
    """At distances, in tokens, that double: what a windowed layer sees directly and what not."""

    name = "distance"
    meaning = "random tokens so many tokens back: where windowed layers stop reaching"
    axis = "distance"

    def places(self, unit: Unit, room: int) -> list[tuple[float, int]]:
        # From the first token of the string to the last one that is shown again.
        least = STRING + SHOWN
        distances, distance = [], 2 * least
        while distance < room:
            distances.append(distance)
            distance *= 2
        distances.append(room + least)
        return [(float(d), room + least - d) for d in distances]


def _room(context: int, head: int) -> int:
    """Tokens of text beside the string, its repetition and the token that begins a text."""
    room = context - head - 2 * STRING
    if room < 16:
        raise KvikError("there is no room for the text: give a larger --context")
    return room


def _rare(material: Material) -> list[int]:
    """Tokens of letters that do not occur in the text; where there are few, any that are no
    control tokens.
    """
    tokenizer, used = material.tokenizer, set(material.ids)
    control = set(tokenizer.control.values())
    letters = [
        token
        for token in range(min(tokenizer.vocab_size, 50_000))
        if token not in control and _is_word(material, token)
    ]
    rare = [token for token in letters if token not in used]
    found = rare if len(rare) >= 4 * STRING else letters
    if len(found) < STRING:
        raise KvikError("the model has too few tokens that stand for letters: leave this task out")
    return found


def _is_word(material: Material, token: int) -> bool:
    try:
        piece = material.tokenizer.piece(token)
    except KvikError:
        return False
    return piece.strip().isalpha()
