"""Sampling: the draws follow the stated distribution, and depend on nothing but their key."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvik.engine.sampler import Sampling, logprobs, sample, uniform
from kvik.errors import KvikError

LOGITS = st.lists(
    st.sampled_from([-4.0, -1.5, 0.0, 0.25, 1.0, 3.0, -math.inf]), min_size=1, max_size=12
).filter(lambda values: max(values) > -math.inf)


def draw(logits: list[float], sampling: Sampling, position: int = 0, **kwargs: int) -> int:
    return sample(
        torch.tensor(logits),
        sampling,
        history=(),
        sample=kwargs.get("sample", 0),
        position=position,
    )


def plain_distribution(logits: list[float], sampling: Sampling) -> dict[int, float]:
    """The documented rules, word for word: id to probability, over lists and loops."""
    top = max(logits)
    weight = {i: math.exp((x - top) / sampling.temperature) for i, x in enumerate(logits)}
    ranked = sorted(weight, key=lambda i: (-logits[i], i))
    if sampling.top_k:
        ranked = ranked[: sampling.top_k]
    if sampling.top_p < 1:
        total, held, kept = sum(weight[i] for i in ranked), 0.0, []
        for i in ranked:
            kept.append(i)
            held += weight[i]
            if held >= sampling.top_p * total - 1e-12:
                break
        ranked = kept
    ranked = [i for i in ranked if weight[i] >= sampling.min_p * weight[ranked[0]]]
    total = sum(weight[i] for i in ranked)
    return {i: weight[i] / total for i in ranked if weight[i] > 0}


def test_greedy_takes_the_likeliest_and_the_lowest_of_equals() -> None:
    assert draw([1.0, 3.0, 2.0, 3.0], Sampling()) == 1
    assert draw([0.0, 0.0], Sampling(top_k=1, temperature=1.0)) == 0


@given(
    LOGITS,
    st.sampled_from([0.3, 1.0, 2.0]),
    st.integers(0, 6),
    st.sampled_from([0.2, 0.55, 0.9, 1.0]),
    st.sampled_from([0.0, 0.05, 0.4, 1.0]),
)
@settings(max_examples=40, deadline=None)
def test_only_tokens_that_the_filters_keep_are_drawn_and_each_of_them(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    wanted = plain_distribution(logits, sampling)
    counts = np.zeros(len(logits))
    draws = 300
    for position in range(draws):
        counts[draw(logits, sampling, position)] += 1
    assert set(np.flatnonzero(counts)) <= wanted.keys()
    # Six standard deviations: over all examples a correct sampler fails once in a million runs.
    for token, share in wanted.items():
        assert abs(counts[token] - draws * share) <= 6 * math.sqrt(draws * share * (1 - share)) + 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax(temperature: float) -> None:
    """Chi-square over 6,000 positions; 15 degrees of freedom, 37.7 at one in a thousand."""
    logits = torch.linspace(-2, 2, 16)
    sampling = Sampling(temperature=temperature, seed=7)
    draws = 6_000
    tokens = [sample(logits, sampling, history=(), sample=0, position=p) for p in range(draws)]
    seen = np.bincount(tokens, minlength=16)
    expected = torch.softmax(logits.double() / temperature, 0).numpy() * draws
    assert ((seen - expected) ** 2 / expected).sum() < 37.7


def test_top_p_over_a_whole_vocabulary_keeps_the_fewest_tokens_that_reach_it() -> None:
    logits = torch.randn(50_000, generator=torch.Generator().manual_seed(1))
    probabilities = torch.softmax(logits.double(), 0).numpy()
    order = np.argsort(-probabilities, kind="stable")
    for top_p in (0.01, 0.5, 0.95):
        count = int(np.searchsorted(np.cumsum(probabilities[order]), top_p)) + 1
        allowed = set(order[:count].tolist())
        sampling = Sampling(temperature=1.0, top_p=top_p)
        drawn = {
            sample(logits, sampling, history=(), sample=0, position=position)
            for position in range(30)
        }
        assert drawn <= allowed


def test_filters_agree_with_transformers_where_no_logits_are_equal() -> None:
    process = pytest.importorskip("transformers.generation.logits_process")
    logits = torch.randn(200, generator=torch.Generator().manual_seed(3)) * 3
    history = [1, 5, 5, 199]
    chain = [
        process.RepetitionPenaltyLogitsProcessor(1.3),
        process.TemperatureLogitsWarper(0.8),
        process.TopKLogitsWarper(40),
        process.TopPLogitsWarper(0.9),
        process.MinPLogitsWarper(0.05),
    ]
    theirs = logits[None].clone()
    for step in chain:
        theirs = step(torch.tensor([history]), theirs)
    wanted = torch.softmax(theirs[0].double(), 0).numpy()
    sampling = Sampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.05, repetition_penalty=1.3)
    draws = 2000
    counts = np.zeros(200)
    for position in range(draws):
        counts[sample(logits, sampling, history=history, sample=0, position=position)] += 1
    assert set(np.flatnonzero(counts)) <= set(np.flatnonzero(wanted))
    likely = wanted * draws > 5
    expected = wanted[likely] * draws
    chi = ((counts[likely] - expected) ** 2 / expected).sum()
    assert chi < likely.sum() + 5 * math.sqrt(2 * likely.sum())


def test_the_repetition_penalty_divides_positive_logits_and_multiplies_negative_ones() -> None:
    sampling = Sampling(repetition_penalty=2.0)
    choose = lambda logits, history: sample(  # noqa: E731
        torch.tensor(logits), sampling, history=history, sample=0, position=0
    )
    assert choose([3.0, 2.0], []) == 0
    assert choose([3.0, 2.0], [0, 0]) == 1  # 3 / 2, once however often it came
    assert choose([-1.0, -1.5], [0]) == 1  # -1 * 2
    with pytest.raises(KvikError, match="history"):
        choose([1.0, 2.0], [2])


def test_a_draw_depends_on_seed_sample_and_position_only() -> None:
    logits = torch.zeros(1000)
    sampling = Sampling(temperature=1.0, seed=3)
    forward = [sample(logits, sampling, history=(), sample=1, position=p) for p in range(50)]
    torch.manual_seed(0)
    np.random.seed(0)
    again = [
        sample(logits, sampling, history=(5,), sample=1, position=p) for p in reversed(range(50))
    ]
    assert again[::-1] == forward
    assert len(set(forward)) > 40
    others = {
        tuple(
            sample(logits, Sampling(temperature=1.0, seed=seed), history=(), sample=s, position=p)
            for p in range(50)
        )
        for seed, s in ((3, 1), (3, 2), (4, 1), (1, 3))
    }
    assert len(others) == 4


def test_the_generator_gives_the_published_words() -> None:
    """Known answers of Random123's kat_vectors for philox4x64 with 10 rounds.

    numpy counts up before it generates, so that counter c here is its block c + 1.
    """
    zero = np.random.Philox(key=0, counter=(1 << 256) - 1).random_raw(4)
    assert [f"{word:016x}" for word in zero] == [
        "16554d9eca36314c",
        "db20fe9d672d0fdc",
        "d7e772cee186176b",
        "7e68b68aec7ba23b",
    ]
    assert [uniform(0, 0, 0), uniform(1, 2, 3), uniform(2**64 - 1, 0, 2**40)] == KNOWN


# Written down once: they must never change, or replays of old seeds would.
KNOWN = [0.011546754286331562, 0.6527702009682942, 0.20353554039193045]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_impossible_logits_are_refused(bad: float) -> None:
    for sampling in (Sampling(), Sampling(temperature=1.0)):
        with pytest.raises(KvikError, match="logits are"):
            draw([0.0, bad, 1.0], sampling)
    with pytest.raises(KvikError, match="all -inf"):
        draw([-math.inf, -math.inf], Sampling())
    with pytest.raises(KvikError, match=r"\[vocab\]"):
        sample(torch.zeros(1, 4), Sampling(), history=(), sample=0, position=0)


def test_a_tiny_temperature_is_greedy_and_a_huge_one_flat() -> None:
    logits = [0.0, 5.0, -math.inf, 4.999]
    tiny, huge = Sampling(temperature=1e-300), Sampling(temperature=1e300)
    assert {draw(logits, tiny, position) for position in range(50)} == {1}
    assert {draw(logits, huge, position) for position in range(50)} == {0, 1, 3}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", 10**400),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_k", 10**400),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("repetition_penalty", 10**400),
        ("repetition_penalty", 1e-320),
        ("repetition_penalty", 1e308),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 0.5),
        ("seed", None),
    ],
)
def test_parameters_out_of_range_are_named(name: str, value: object) -> None:
    with pytest.raises(KvikError, match=f"{name} is .*; it must be"):
        Sampling(**{name: value})


def test_parameters_are_plain_floats() -> None:
    """Whole numbers are taken too; what follows never meets one."""
    sampling = Sampling(temperature=2, top_p=1, min_p=0, repetition_penalty=2)
    for name in ("temperature", "top_p", "min_p", "repetition_penalty"):
        assert type(getattr(sampling, name)) is float
    assert sampling == Sampling(temperature=2.0, repetition_penalty=2.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_penalty_that_leaves_the_numbers_is_an_error(temperature: float) -> None:
    """Logits near the ends of float64 do; impossible tokens stay impossible and are none."""
    for first, penalty in ((1e307, 1e-3), (-1e307, 1e3)):
        options = Sampling(temperature=temperature, repetition_penalty=penalty)
        with pytest.raises(KvikError, match="repetition penalty"):
            after([first, 0.0], options)
        assert after([-math.inf, 0.0], options) == 1


def after(logits: list[float], sampling: Sampling) -> int:
    """The token that follows token 0, from logits in float64."""
    table = torch.tensor(logits, dtype=torch.float64)
    return sample(table, sampling, history=(0,), sample=0, position=1)


def test_log_probabilities_are_the_models_own_in_double_precision() -> None:
    logits = torch.tensor([1.0, -2.0, -math.inf, 80.0], dtype=torch.bfloat16)
    got = logprobs(logits)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, torch.log_softmax(logits.double(), 0).numpy(), rtol=1e-15)
