"""Which stacks the conformance suite runs: all stages alone, all pairs, seeded triples."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

from kvik.recipe import Slot
from kvik.recipe.stage import load_stages

PAGES = ("page:1", "page:7", "page:16", "page:64")
SCOPES = ("fp16@0", "int8@-1", "page:16@0")


def examples(slot: Slot) -> list[str]:
    """Recipe texts of every registered stage of a slot, from the stages' own ``examples``."""
    classes = dict.fromkeys(load_stages().values())
    return [text for cls in classes if cls.slot == slot for text in cls.examples]


def factors() -> list[list[str]]:
    """The choices of a stack: K codec, V codec, retention, page size, scope; '' for none."""
    codecs = [c for c in examples(Slot.CODEC) if c != "none"]
    return [
        codecs,
        ["", *codecs],
        ["", *examples(Slot.RETENTION)],
        ["", *PAGES],
        ["", *SCOPES],
    ]


def stack(choice: tuple[str, ...]) -> str:
    """The recipe text of one choice per factor."""
    k, v, *rest = choice
    if any(scope and scope.partition("@")[0].startswith("page") for scope in rest[2:]):
        rest[1] = ""
    return "+".join([f"{k}/{v}" if v else k, *(part for part in rest if part)])


def alone() -> list[str]:
    """Every example of every stage by itself."""
    slots = (Slot.CODEC, Slot.RETENTION)
    return [text for slot in slots for text in examples(slot)] + ["int8+" + p for p in PAGES]


def pairwise() -> list[str]:
    """A covering array: every pair of choices stands in some stack."""
    from allpairspy import AllPairs

    return list(dict.fromkeys(stack(tuple(choice)) for choice in AllPairs(factors())))


def pairwise_stages(legal: Callable[[str], bool], tries: int = 8) -> list[str]:
    """Every pair of stages stands in some stack; their examples take turns.

    A fifth of ``pairwise()``, for what takes seconds a stack. Where a stack is not legal, the next
    examples and page sizes have their turn; after ``tries`` of them the last one stays. Examples
    that no legal stack took come last, alone.
    """
    from allpairspy import AllPairs

    classes = [c for c in dict.fromkeys(load_stages().values()) if c.examples]
    codecs = [c for c in classes if c.slot == Slot.CODEC and c.examples != ("none",)]
    retentions = [c for c in classes if c.slot == Slot.RETENTION]
    turns = {c: itertools.cycle(c.examples) for c in (*codecs, *retentions)}
    left = dict.fromkeys(text for stage in turns for text in stage.examples)
    pages, found = itertools.cycle(PAGES), []
    for *stages, scope in AllPairs([codecs, [None, *codecs], [None, *retentions], ["", *SCOPES]]):
        for _ in range(tries):
            texts = [next(turns[stage]) if stage else "" for stage in stages]
            text = stack((*texts, next(pages), scope))
            if legal(text):
                left = {text: None for text in left if text not in texts}
                break
        found.append(text)
    return found + list(left)


def triples(count: int, seed: int = 0) -> list[str]:
    """``count`` random stacks, the same for the same seed."""
    chance = random.Random(seed)
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        drawn[stack(tuple(chance.choice(f) for f in factors()))] = None
    return list(drawn)


def everything() -> Iterator[str]:
    """The full product, for soaks."""
    return (stack(choice) for choice in itertools.product(*factors()))
