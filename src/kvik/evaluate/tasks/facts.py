"""Small statements to hide in a text: names of places and the numbers that belong to them."""

from __future__ import annotations

from random import Random

from kvik.errors import KvikError

PLACES = (
    "lighthouse", "harbour", "library", "observatory", "orchard", "windmill", "monastery",
    "museum", "railway", "quarry", "theatre", "vineyard", "aquarium", "bakery", "castle",
    "factory", "garden", "hospital", "island", "laboratory", "market", "palace", "school",
    "tunnel",
)  # fmt: skip
NAMES = (
    "AMBER", "BIRCH", "CORAL", "DELTA", "EMBER", "FJORD", "GLADE", "HAZEL", "INDIGO", "JASPER",
    "KESTREL", "LOTUS", "MAPLE", "NECTAR", "OPAL", "PEBBLE", "QUARTZ", "RAVEN", "SAFFRON", "TULIP",
)  # fmt: skip


def numbers(draw: Random, count: int) -> list[str]:
    """So many different numbers of five digits; KvikError where there are not as many."""
    if count > 90_000:
        raise KvikError("there are not as many numbers of five digits: give a smaller --context")
    return [str(n) for n in draw.sample(range(10_000, 100_000), count)]


def fact(place: str, number: str) -> str:
    """The sentence that is hidden."""
    return f"The secret number of the {place} is {number}."


def question(place: str) -> str:
    """What is asked for it."""
    return f"What is the secret number of the {place}?"


def lead(place: str) -> str:
    """The first words of the answer."""
    return f"The secret number of the {place} is"
