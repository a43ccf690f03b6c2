"""Beam search: a plain search over lists, exhaustive search, ties, pauses, limits."""

from __future__ import annotations

import itertools
import math
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvik.engine.beam import BeamParams, BeamSearch, Choice, Hypothesis
from kvik.errors import KvikError

Text = tuple[int, ...]
Logits = Callable[[Text], Tensor]


def table(seed: int, vocab: int, *, coarse: bool = False) -> Logits:
    """A random logit row for every text; ``coarse`` rows have many ties and impossible tokens."""

    def row(text: Text) -> Tensor:
        chance = np.random.default_rng([seed, len(text), *text])
        if not coarse:
            return torch.from_numpy(chance.normal(0, 4, vocab))
        values = chance.choice([-math.inf, 0.0, 1.0], vocab)
        values[chance.integers(vocab)] = 1.0
        return torch.from_numpy(values)

    return row


def search(logits: Logits, params: BeamParams, *, pause: bool = False, **more: Any) -> BeamSearch:
    """Runs a search, keeping the texts apart from it by the choices' parents, as an engine does."""
    beams = BeamSearch(params, **more)
    texts: list[Text] = [()]
    choices = beams.first(logits(()))
    while choices:
        texts = [(*texts[c.parent], c.token) for c in choices]
        assert texts == [beam.tokens for beam in beams.live]
        assert all(beam.logprob > -math.inf for beam in beams.live)
        if pause:
            beams = pickle.loads(pickle.dumps(beams))
        choices = beams.advance(torch.stack([logits(text) for text in texts]))
    assert beams.done
    return beams


def plain(
    logits: Logits, params: BeamParams, eos_ids: frozenset[int], max_new: int
) -> list[Hypothesis]:
    """The documented rules, word for word."""
    live: list[tuple[Text, float]] = [((), 0.0)]
    done: list[Hypothesis] = []
    width, penalty = params.width, params.length_penalty
    for length in range(1, max_new + 1):
        every = []
        for beam, (text, total) in enumerate(live):
            row = logits(text).tolist()
            top = max(row)
            mass = top + math.log(sum(math.exp(x - top) for x in row))
            for token, x in enumerate(row):
                if x > -math.inf:
                    # Rounded, so that what ties in exact arithmetic ties here too.
                    every.append((-round(total + x - mass, 9), beam, token, total + x - mass))
        every = sorted(every)[: width * max(2, 1 + len(eos_ids))]
        onward = []
        for rank, (_, beam, token, total) in enumerate(every):
            text = (*live[beam][0], token)
            if token in eos_ids or length == max_new:
                finish = "eos" if token in eos_ids else "length"
                if rank < width:
                    done.append(Hypothesis(text, total / length**penalty, finish))
            else:
                onward.append((text, total))
        done = sorted(done, key=lambda h: -round(h.score, 9))[:width]
        live = onward[:width]
        if not live:
            break
        if len(done) == width:
            if params.early_stopping is True or width == 1:
                break
            longest = params.early_stopping == "never" and penalty > 0
            reach = live[0][1] / (max_new if longest else length) ** penalty
            if round(reach, 9) <= round(done[-1].score, 9):
                break
    return done[: params.n]


def same(got: list[Hypothesis], wanted: list[Hypothesis]) -> None:
    assert [(h.tokens, h.finish) for h in got] == [(h.tokens, h.finish) for h in wanted]
    assert [h.score for h in got] == pytest.approx([h.score for h in wanted], abs=1e-9)


@settings(max_examples=400)
@given(st.integers(0, 2**32))
def test_it_is_the_plain_search(seed: int) -> None:
    # Drawn evenly: a search that is small in every respect at once shows little.
    chance = random.Random(seed)
    vocab, width = chance.randint(1, 9), chance.randint(1, 5)
    params = BeamParams(
        width,
        n=width,
        length_penalty=chance.choice([-1.0, 0, 0.5, 1.0, 2.0]),
        early_stopping=chance.choice([True, False, "never"]),
    )
    eos_ids = frozenset(chance.sample(range(vocab + 1), min(vocab, chance.randint(0, 3))))
    max_new, logits = chance.randint(1, 9), table(seed, vocab)
    got = search(logits, params, pause=chance.random() < 0.5, eos_ids=eos_ids, max_new=max_new)
    same(got.result(), plain(logits, params, eos_ids, max_new))


@given(st.integers(0, 999), st.integers(2, 4))
def test_impossible_tokens_never_come(seed: int, width: int) -> None:
    logits = table(seed, 6, coarse=True)
    for found in search(
        logits, BeamParams(width, n=width), eos_ids=frozenset({2}), max_new=5
    ).result():
        for at, token in enumerate(found.tokens):
            assert logits(found.tokens[:at])[token] > -math.inf


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.0])
def test_a_search_wide_enough_finds_every_text(penalty: float) -> None:
    eos, max_new, logits = 1, 4, table(5, 3)
    every = []
    for length in range(1, max_new + 1):
        for text in itertools.product(range(3), repeat=length):
            if eos in text[:-1] or (length < max_new and text[-1] != eos):
                continue
            total = sum(float(logits(text[:i]).log_softmax(0)[t]) for i, t in enumerate(text))
            finish = "eos" if text[-1] == eos else "length"
            every.append(Hypothesis(text, total / length**penalty, finish))
    assert len(every) == 31
    params = BeamParams(81, n=81, length_penalty=penalty, early_stopping="never")
    found = search(logits, params, eos_ids={eos}, max_new=max_new).result()
    same(found, sorted(every, key=lambda h: -h.score))


def test_ties_go_to_the_lower_beam_then_the_lower_token() -> None:
    search = BeamSearch(BeamParams(3), eos_ids={0}, max_new=9)
    one = -math.log(8)
    assert search.first(torch.zeros(8)) == [
        Choice(0, token, pytest.approx(one, abs=1e-12)) for token in (1, 2, 3)
    ]
    assert search.hypotheses == [Hypothesis((0,), pytest.approx(one, abs=1e-12), "eos")]
    assert [c[:2] for c in search.advance(torch.zeros(3, 8))] == [(0, 1), (0, 2), (0, 3)]
    assert [h.tokens for h in search.hypotheses] == [(0,), (1, 0)]
    search = BeamSearch(BeamParams(180), eos_ids=(), max_new=9)
    tokens = [c.token for c in search.first(torch.tensor([0.0, 1.0] * 100))]
    assert tokens == [*range(1, 200, 2), *range(0, 160, 2)]


def test_a_beam_that_can_only_draw_level_is_not_followed() -> None:
    search = BeamSearch(BeamParams(2, length_penalty=0), eos_ids={0}, max_new=9)
    assert [c.token for c in search.first(torch.zeros(4))] == [1, 2]
    certain = torch.full((2, 4), -math.inf)
    certain[0, 0] = certain[1, 3] = 0.0
    assert search.advance(certain) == []
    assert [h.tokens for h in search.hypotheses] == [(0,), (1, 0)]


def test_length_is_no_hope_where_it_costs() -> None:
    search = BeamSearch(
        BeamParams(2, length_penalty=-1, early_stopping="never"), eos_ids={0}, max_new=9
    )
    search.first(torch.tensor([0.4, 0.5, 0.1]).log())
    search.advance(torch.tensor([[0.4, 0.6, 0.0], [0.2, 0.5, 0.3]]).log())
    # 2 ln 0.3 would beat 2 ln 0.2 now; 9 ln 0.3 would not.
    assert [h.tokens for h in search.hypotheses] == [(0,), (1, 0)]
    assert not search.done


def test_a_token_outside_the_first_width_ends_nothing() -> None:
    row = torch.tensor([3.0, 2.0, 1.0, 0.0])
    search = BeamSearch(BeamParams(2), eos_ids={2}, max_new=9)
    assert [c.token for c in search.first(row)] == [0, 1]
    assert search.result() == []
    search = BeamSearch(BeamParams(2), eos_ids={1}, max_new=9)
    assert [c.token for c in search.first(row)] == [0, 2]
    assert [h.tokens for h in search.result()] == [(1,)]


def test_no_two_beams_hold_the_same_text() -> None:
    beams = BeamSearch(BeamParams(4), eos_ids=(), max_new=8)
    logits = table(3, 5)
    beams.first(logits(()))
    while not beams.done:
        texts = [beam.tokens for beam in beams.live]
        assert len(set(texts)) == len(texts) == 4
        beams.advance(torch.stack([logits(text) for text in texts]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"width": 0}, "beam width is 0"),
        ({"width": True}, "beam width is True"),
        ({"n": 5}, "4 beams give 1 to 4 texts, not 5"),
        ({"n": 0}, "not 0"),
        ({"length_penalty": math.nan}, "from -10 to 10"),
        ({"length_penalty": 11}, "from -10 to 10"),
        ({"early_stopping": "always"}, "True, False or 'never'"),
        ({"early_stopping": 1}, "True, False or 'never'"),
    ],
)
def test_bad_parameters_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(KvikError, match=says):
        BeamParams(**{"width": 4} | change)


def test_steps_out_of_turn_are_refused() -> None:
    with pytest.raises(KvikError, match="at least one new token"):
        BeamSearch(BeamParams(2), eos_ids=(), max_new=0)
    search = BeamSearch(BeamParams(2), eos_ids=(), max_new=2)
    search.first(torch.zeros(4))
    with pytest.raises(KvikError, match="has begun"):
        search.first(torch.zeros(4))
    with pytest.raises(KvikError, match="3 rows of logits came for 2 live beams"):
        search.advance(torch.zeros(3, 4))
    assert search.advance(torch.zeros(2, 4)) == []
    with pytest.raises(KvikError, match="0 live beams"):
        search.advance(torch.zeros(0, 4))
