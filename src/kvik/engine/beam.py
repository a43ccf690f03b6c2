"""Beam search: which texts go on and which are done, from rows of logits. Nothing is sampled.

The engine runs the model and owns the sequences; this decides. One step looks at the likeliest
``width * max(2, 1 + end tokens)`` continuations of all live beams, so that ``width`` of them go
on whatever ends. Those of the first ``width`` that end become hypotheses, of which the best
``width`` are kept. Equal log-probabilities rank by beam, then by token id, lowest first; equal
scores by which came first.

A hypothesis scores log-probability / tokens ** length_penalty, its end token counted, as in
transformers, whose stopping rules these are too. Arithmetic is float64, theirs float32.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from dataclasses import dataclass
from math import inf, pow
from typing import Literal, NamedTuple

import numpy as np
from torch import Tensor

from kvik.engine.sampler import Floats, logprobs
from kvik.errors import KvikError


@dataclass(frozen=True)
class BeamParams:
    """How to search.

    ``width``: beams that live side by side; 1 is greedy search. ``n``: hypotheses to return.
    ``length_penalty``: over 0 favours long texts, under 0 short ones. ``early_stopping``: when to
    stop once ``width`` hypotheses are there. True: at once. False: when the best live beam would
    not beat the worst of them if it ended now. "never": when it could not at any length.
    """

    width: int
    n: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        if type(self.width) is not int or self.width < 1:
            raise KvikError(f"the beam width is {self.width!r}; it must be a whole number from 1")
        if type(self.n) is not int or not 1 <= self.n <= self.width:
            raise KvikError(f"{self.width} beams give 1 to {self.width} texts, not {self.n!r}")
        penalty = self.length_penalty
        if type(penalty) not in (int, float) or not -10 <= penalty <= 10:
            raise KvikError(f"length_penalty is {penalty!r}; it must be from -10 to 10")
        object.__setattr__(self, "length_penalty", float(penalty))
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise KvikError(
                f"early_stopping is {self.early_stopping!r}; it must be True, False or 'never'"
            )


class Choice(NamedTuple):
    """A beam of the next step: ``token`` after the live beam number ``parent``.

    ``logprob``: of all its tokens together.
    """

    parent: int
    token: int
    logprob: float


class Beam(NamedTuple):
    """A text that is still growing: its new tokens and their log-probability."""

    tokens: tuple[int, ...]
    logprob: float


class Hypothesis(NamedTuple):
    """A text that is done. ``tokens`` are the new ones, with the end token if that ended it."""

    tokens: tuple[int, ...]
    score: float
    finish: Literal["eos", "length"]


class BeamSearch:
    """The state of one search: plain data, so a search can rest between any two steps.

    :meth:`first` takes the logits after the prompt, :meth:`advance` those after the token of
    every live beam, in the order of the choices returned last. Each choice names its parent among
    the live beams before it; a parent may come several times (fork its sequence) or never (free
    it, after the forks). There are no choices once the search is ``done``.
    """

    def __init__(self, params: BeamParams, *, eos_ids: Collection[int], max_new: int) -> None:
        if max_new < 1:
            raise KvikError(f"at least one new token must be asked for, not {max_new}")
        self.params, self.eos_ids, self.max_new = params, frozenset(eos_ids), max_new
        self.live = [Beam((), 0.0)]
        self.hypotheses: list[Hypothesis] = []

    @property
    def done(self) -> bool:
        """Whether no beam is left to feed."""
        return not self.live

    def fork(self) -> BeamSearch:
        """A search that stands where this one does and goes on by itself."""
        return copy(self)  # no list of it is ever changed in place

    def first(self, row: Tensor) -> list[Choice]:
        """The first beams, from the logits [vocab] after the prompt; every parent is 0."""
        if self.live != [Beam((), 0.0)]:
            raise KvikError("the search has begun; feed the live beams and call advance")
        return self.advance(row[None])

    def advance(self, rows: Tensor) -> list[Choice]:
        """One step, from the logits [live, vocab] after each live beam, likeliest beam first.

        Fewer than ``width`` choices where not enough tokens are possible.
        """
        if self.done or len(rows) != len(self.live):
            raise KvikError(f"{len(rows)} rows of logits came for {len(self.live)} live beams")
        width = self.params.width
        totals = np.stack([b.logprob + logprobs(r) for b, r in zip(self.live, rows, strict=True)])
        choices, grown, found = [], [], list(self.hypotheses)
        for rank, choice in enumerate(_likeliest(totals, width * max(2, 1 + len(self.eos_ids)))):
            beam = Beam((*self.live[choice.parent].tokens, choice.token), choice.logprob)
            ended = choice.token in self.eos_ids
            if not ended and len(beam.tokens) < self.max_new:
                choices.append(choice)
                grown.append(beam)
            elif rank < width:
                score = self._score(beam.logprob, len(beam.tokens))
                finish: Literal["eos", "length"] = "eos" if ended else "length"
                found.append(Hypothesis(beam.tokens, score, finish))
        found = sorted(found, key=lambda h: -h.score)[:width]
        live = [] if self._settled(grown, found) else grown[:width]
        self.hypotheses, self.live = found, live
        return choices[: len(live)]

    def result(self) -> list[Hypothesis]:
        """The best ``n`` hypotheses, best first: of those found so far while not ``done``."""
        return self.hypotheses[: self.params.n]

    def _score(self, logprob: float, length: int) -> float:
        return logprob / pow(length, self.params.length_penalty)

    def _settled(self, grown: list[Beam], found: list[Hypothesis]) -> bool:
        """Whether the hypotheses stand, though beams could go on."""
        width, early = self.params.width, self.params.early_stopping
        if not grown or len(found) < width:
            return False
        if early is True or width == 1:
            return True
        far = early == "never" and self.params.length_penalty > 0
        length = self.max_new if far else len(grown[0].tokens)
        return self._score(grown[0].logprob, length) <= found[-1].score


def _likeliest(totals: Floats, count: int) -> list[Choice]:
    """At most ``count`` possible continuations out of ``totals`` [live, vocab], in their order."""
    flat = totals.ravel()
    least = -inf if count >= flat.size else np.partition(flat, -count)[-count]
    places = np.flatnonzero((flat >= least) & (flat > -inf))
    places = places[np.argsort(-flat[places], kind="stable")][:count]
    parents, tokens = np.divmod(places, totals.shape[1])
    return list(map(Choice, parents.tolist(), tokens.tolist(), flat[places].tolist()))
