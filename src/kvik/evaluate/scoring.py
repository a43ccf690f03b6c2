"""How likely a model holds given continuations, computed once for all that begin alike.

The texts are fed in sorted order through one session. Between two of them it goes back to what
they have in common, so that a context with four answers, or a few-shot prompt with a hundred
questions, is computed once. By the position law this changes nothing but the time it takes; the
recipe ``none`` keeps nothing and computes everything again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from kvik.errors import KvikError

if TYPE_CHECKING:
    from torch import Tensor

    from kvik.engine.session import Session
    from kvik.models import Model
    from kvik.recipe import Recipe

ROWS = 64  # of logits at a time: a row of a large vocabulary is a megabyte
MARKS = 8  # points of a text that an evicting cache can go back to


@dataclass(frozen=True)
class Passage:
    """Token ids of which the last ``scored`` are asked for; at least one comes before them."""

    ids: tuple[int, ...]
    scored: int

    def __post_init__(self) -> None:
        if not 0 < self.scored < len(self.ids):
            raise KvikError(
                f"{self.scored} of {len(self.ids)} tokens cannot be scored: one or more can, and "
                "one has to come before them"
            )

    @property
    def fed(self) -> tuple[int, ...]:
        """What goes through the cache: all but the last token."""
        return self.ids[:-1]

    @property
    def start(self) -> int:
        """How many tokens are fed before the first one whose logits are asked for."""
        return len(self.ids) - 1 - self.scored


class Score(NamedTuple):
    """Of a passage, by its number: ln p of what is scored, and whether greedy decoding gives it."""

    passage: int
    loglikelihood: float
    greedy: bool


@dataclass
class Work:
    """Tokens that were to be fed, and those that were computed."""

    asked: int = 0
    computed: int = 0


def score_passages(
    model: Model, recipe: Recipe | str, passages: Sequence[Passage], work: Work
) -> Iterator[Score]:
    """The score of every passage, in an order of its own; ``work`` is added to.

    KvikError where a logit is not a finite number, CapacityError where the longest passage does
    not fit.
    """
    from kvik.engine.session import Session

    if not passages:
        return
    longest = max(len(passage.fed) for passage in passages)
    session = Session(model, recipe, max_tokens=longest, max_forks=0, max_marks=MARKS)
    walk = _Walk(session, work)
    order = sorted(range(len(passages)), key=lambda i: passages[i].ids)
    try:
        for index, following in zip_longest(order, order[1:]):
            passage = passages[index]
            after = None if following is None else passages[following]
            shared = 0 if after is None else min(_common(passage, after), after.start)
            yield Score(index, *walk.score(passage, shared))
            walk.go_back(shared)
    finally:
        session.close()


class _Walk:
    """A session that goes from one passage to the next."""

    def __init__(self, session: Session, work: Work) -> None:
        self._session, self._work = session, work
        self._marks: list[int] = []

    def score(self, passage: Passage, shared: int) -> tuple[float, bool]:
        """Feed what is missing of a passage, of whose beginning ``shared`` tokens stay wanted."""
        self._work.asked += len(passage.fed)
        self._feed(passage.fed[: min(shared, passage.start)])
        if shared and len(self._marks) < MARKS and self._marks[-1:] != [self._held]:
            self._session.mark()
            self._marks.append(self._held)
        self._feed(passage.fed[: passage.start])
        total, greedy = 0.0, True
        for at in range(passage.start, len(passage.fed), ROWS):
            part = passage.fed[at : at + ROWS]
            logits = self._session.feed(part, logits="all", chunk=ROWS)
            self._work.computed += len(part)
            value, equal = _judge(logits, passage.ids[at + 1 : at + 1 + len(part)])
            total, greedy = total + value, greedy and equal
        return total, greedy

    def go_back(self, length: int) -> None:
        """To the first ``length`` tokens."""
        self._work.computed += self._session.trim(length)
        self._marks = [mark for mark in self._marks if mark <= length]

    @property
    def _held(self) -> int:
        return len(self._session.tokens)

    def _feed(self, ids: Sequence[int]) -> None:
        missing = ids[self._held :]
        if missing:
            self._session.feed(missing)
            self._work.computed += len(missing)


def _judge(logits: Tensor, targets: Sequence[int]) -> tuple[float, bool]:
    """Sum of ln p of ``targets`` [n] under ``logits`` [n, vocab], and whether each is likeliest."""
    import torch

    wanted = torch.tensor(targets)
    wide = logits.double()
    own = wide.gather(1, wanted[:, None])[:, 0]
    total = float((own - wide.logsumexp(1)).sum())
    if not torch.isfinite(wide).all():
        raise KvikError("the model's logits are not finite numbers with this cache")
    return total, bool((logits.argmax(1) == wanted).all())


def _common(one: Passage, other: Passage) -> int:
    """How many tokens two passages feed alike from their beginning."""
    pairs = zip(one.fed, other.fed, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.fed), len(other.fed)))
