"""Needles: numbers hidden in a long text (after Kamradt's test, without a judge)."""

from __future__ import annotations

from typing import Any

from kvik.errors import KvikError
from kvik.evaluate.tasks.base import Ask, Material, Unit
from kvik.evaluate.tasks.facts import PLACES, fact, lead, numbers, question
from kvik.evaluate.tasks.recall import Probe, Recall

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)


class Needle(Recall):
    """One number a prompt, at each depth of each context."""

    name = "needle"
    meaning = "a number hidden in the text: a map of depth by context"
    contexts = (500, 1000, 2000)
    samples = 4

    uses = frozenset({"depths"})

    def options(self, ask: Ask) -> dict[str, Any]:
        return {"depths": list(ask.depths or DEPTHS)}

    def hidden(self, material: Material, unit: Unit, *, decoy: bool) -> list[Probe]:
        draw, spelling, context = material.draw(unit), material.spelling, unit.where["context"]
        noise = material.excerpt(context, unit.where["sample"])
        made = []
        for depth in unit.where["depths"]:
            place, (asked, other) = draw.choice(PLACES), numbers(draw, 2)
            said = fact(place, other if decoy else asked)
            answer = spelling.answer(lead(place), asked)
            room = context - len(answer)
            ids = spelling.fit(noise, [(depth, said)], question(place), lead(place), room)
            made.append(Probe(depth, ids, answer))
        return made


class Needles(Recall):
    """Several numbers in one prompt, of different places; each of them is asked for."""

    name = "needles"
    meaning = "several numbers in one text, each asked for after the same context"
    contexts = (1000, 2000)
    samples = 4

    uses = frozenset({"depths"})

    def options(self, ask: Ask) -> dict[str, Any]:
        return {"depths": list(ask.depths or DEPTHS)}

    def hidden(self, material: Material, unit: Unit, *, decoy: bool) -> list[Probe]:
        draw, spelling, context = material.draw(unit), material.spelling, unit.where["context"]
        noise, depths = material.excerpt(context, unit.where["sample"]), unit.where["depths"]
        if len(depths) > len(PLACES):
            raise KvikError(f"at most {len(PLACES)} numbers can be told apart: give fewer --depth")
        places = draw.sample(PLACES, len(depths))
        drawn = numbers(draw, 2 * len(depths))
        asked, others = drawn[: len(depths)], drawn[len(depths) :]
        said = others if decoy else asked
        facts = [(d, fact(p, n)) for d, p, n in zip(depths, places, said, strict=True)]
        made = []
        for depth, place, number in zip(depths, places, asked, strict=True):
            answer = spelling.answer(lead(place), number)
            room = context - len(answer)
            ids = spelling.fit(noise, facts, question(place), lead(place), room)
            made.append(Probe(depth, ids, answer))
        return made
