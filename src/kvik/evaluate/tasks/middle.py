"""Lost in the middle (Liu et al. 2023, arXiv 2307.03172): a list of pairs, one is asked for."""

from __future__ import annotations

from kvik.errors import KvikError
from kvik.evaluate.tasks.base import Material, Unit
from kvik.evaluate.tasks.facts import numbers
from kvik.evaluate.tasks.recall import Probe, Recall

ASKED = 5
QUESTION = "Which value belongs to the key {key}?"
LEAD = "The value of the key {key} is"


class Middle(Recall):
    """Keys and values of five digits that fill the context; asked for by their place in it."""

    name = "middle"
    meaning = "a list of keys and values: recall by the place in the list"
    contexts = (500, 1000)
    samples = 4

    def hidden(self, material: Material, unit: Unit, *, decoy: bool) -> list[Probe]:
        context, spelling = unit.where["context"], material.spelling
        count = self._pairs(material, context)
        drawn = numbers(material.draw(unit), 3 * count)
        keys, values, others = (drawn[i * count : (i + 1) * count] for i in range(3))
        said = others if decoy else values
        document = _document(keys, said)
        made = []
        for number in range(ASKED):
            at = number * (count - 1) // (ASKED - 1)
            lead = LEAD.format(key=keys[at])
            ids = spelling.prompt(document, QUESTION.format(key=keys[at]), lead)
            answer = spelling.answer(lead, values[at])
            made.append(Probe(number / (ASKED - 1), ids, answer))
        return made

    def _pairs(self, material: Material, context: int) -> int:
        """As many pairs as fit, by the length of two prompts: all numbers are as long."""

        def length(count: int) -> int:
            digits = [str(10_000 + i) for i in range(count)]
            lead = LEAD.format(key=digits[0])
            spelling = material.spelling
            prompt = spelling.prompt(
                _document(digits, digits), QUESTION.format(key=digits[0]), lead
            )
            return len(prompt) + len(spelling.answer(lead, digits[0]))

        short, long = length(10), length(20)
        count = 10 + int((context - 16 - short) / ((long - short) / 10))
        if count < 2 * ASKED:
            raise KvikError("there is no room for the text: give a larger --context")
        return count

    def tokens(self, unit: Unit) -> int:
        return int(unit.where["context"]) + 64  # some tokenizers join digits unevenly


def _document(keys: list[str], values: list[str]) -> str:
    pairs = "\n".join(f"{key}: {value}" for key, value in zip(keys, values, strict=True))
    return f"Here are keys and their values.\n\n{pairs}"
