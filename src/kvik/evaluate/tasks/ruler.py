"""Tasks in the manner of RULER (Hsieh et al. 2024, arXiv 2404.06654), in words of our own.

The model writes its answer, and the share of the expected strings found in it counts. Small models
are near the floor here; only what the dense cache can do is counted.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from random import Random

from kvik.evaluate.tasks.base import Material, Unit
from kvik.evaluate.tasks.facts import NAMES, PLACES, fact, numbers, question
from kvik.evaluate.tasks.recall import Probe, Recall


@dataclass(frozen=True)
class Riddle:
    """Facts by depth, the question, the answer's first words, and what it must contain."""

    facts: list[tuple[float, str]]
    question: str
    lead: str
    expects: tuple[str, ...]


class _Written(Recall):
    """One riddle a unit. The decoy says other things and asks the same."""

    contexts = (500, 1000)
    samples = 6
    axis = "sample"

    @abstractmethod
    def riddle(self, draw: Random) -> tuple[Riddle, Riddle]:
        """A riddle and its decoy, whose facts alone differ."""

    def hidden(self, material: Material, unit: Unit, *, decoy: bool) -> list[Probe]:
        spelling, context = material.spelling, unit.where["context"]
        riddle, other = self.riddle(material.draw(unit))
        facts = (other if decoy else riddle).facts
        answer = spelling.answer(riddle.lead, ", ".join(riddle.expects))
        steps = len(answer) + 2  # no room to list everything there is
        noise = material.excerpt(context, unit.where["sample"])
        ids = spelling.fit(noise, facts, riddle.question, riddle.lead, context - steps)
        return [Probe(float(unit.where["sample"]), ids, answer, riddle.expects, steps)]


class MultiKey(_Written):
    """Four places have numbers, one is asked for (niah_multikey)."""

    name = "multikey"
    meaning = "RULER-style: one of four similar facts"

    def riddle(self, draw: Random) -> tuple[Riddle, Riddle]:
        places, said = draw.sample(PLACES, 4), numbers(draw, 5)
        depths = _depths(draw, 4)
        asked = draw.randrange(4)
        facts = [(d, fact(p, n)) for d, p, n in zip(depths, places, said, strict=False)]
        others = list(facts)
        others[asked] = (depths[asked], fact(places[asked], said[4]))
        lead = f"The secret number of the {places[asked]} is"
        made = Riddle(facts, question(places[asked]), lead, (said[asked],))
        return made, Riddle(others, made.question, made.lead, made.expects)


class MultiValue(_Written):
    """One place has three numbers, all of which are asked for (niah_multivalue)."""

    name = "multivalue"
    meaning = "RULER-style: all of three values of one key"

    def riddle(self, draw: Random) -> tuple[Riddle, Riddle]:
        place, said = draw.choice(PLACES), numbers(draw, 6)
        depths = _depths(draw, 3)
        asks = f"What are the three secret numbers of the {place}?"
        lead = f"The secret numbers of the {place} are"
        facts = [(d, fact(place, n)) for d, n in zip(depths, said[:3], strict=True)]
        others = [(d, fact(place, n)) for d, n in zip(depths, said[3:], strict=True)]
        expects = tuple(said[:3])
        return Riddle(facts, asks, lead, expects), Riddle(others, asks, lead, expects)


class Tracking(_Written):
    """A number is given to a variable, that one to the next, and so on (variable tracking)."""

    name = "tracking"
    meaning = "RULER-style: variables that pass a number on"

    def riddle(self, draw: Random) -> tuple[Riddle, Riddle]:
        names, said = draw.sample(NAMES, 4), numbers(draw, 2)
        chain, loose = names[:2], names[2:]
        depths = _depths(draw, 4)
        facts = [(depths[0], f"VAR {chain[0]} = {said[0]}.")]
        facts += [(depths[1], f"VAR {loose[0]} = {said[1]}.")]
        facts += [(depths[2], f"VAR {chain[1]} = VAR {chain[0]}.")]
        facts += [(depths[3], f"VAR {loose[1]} = VAR {loose[0]}.")]
        swapped = [(d, _swap(text, chain, loose)) for d, text in facts]
        asks = f"Which two variables have the value {said[0]}?"
        lead = f"The variables with the value {said[0]} are"
        expects = tuple(chain)
        return Riddle(facts, asks, lead, expects), Riddle(swapped, asks, lead, expects)


class CommonWords(_Written):
    """Some words stand in a list much more often than the others (common words extraction)."""

    name = "words"
    meaning = "RULER-style: the words that a list repeats most"
    OFTEN, SELDOM = 10, 1

    def riddle(self, draw: Random) -> tuple[Riddle, Riddle]:
        words = draw.sample(PLACES, 20)

        def listed(common: list[str]) -> str:
            every = [w for w in words for _ in range(self.OFTEN if w in common else self.SELDOM)]
            draw.shuffle(every)
            return "Words: " + ", ".join(every) + "."

        # One order alone is right: the answer is scored token by token.
        asks = "Which three words are most common in the list of words, in alphabetical order?"
        lead = "The most common words, in alphabetical order, are"
        common, other = sorted(words[:3]), sorted(words[3:6])
        facts, others = [(0.5, listed(common))], [(0.5, listed(other))]
        expects = tuple(common)
        return Riddle(facts, asks, lead, expects), Riddle(others, asks, lead, expects)


def _depths(draw: Random, count: int) -> list[float]:
    return sorted(draw.sample([i / 40 for i in range(1, 40)], count))


def _swap(text: str, ones: list[str], others: list[str]) -> str:
    """The names of both lists exchanged."""
    both = dict(zip(ones, others, strict=True)) | dict(zip(others, ones, strict=True))
    return " ".join(
        both.get(w.rstrip("."), w.rstrip(".")) + "." * w.endswith(".") for w in text.split()
    )
