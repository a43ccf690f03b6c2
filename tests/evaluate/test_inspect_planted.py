"""Planted faults and structure: the figures of ``kvik inspect`` must see them, and only them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.evaluate.inspected import look

from kvik.evaluate.inspect.coded import coded
from kvik.evaluate.inspect.document import layer_facts
from kvik.evaluate.inspect.findings import findings, percent, rank_correlation
from kvik.evaluate.inspect.stored import outliers
from kvik.spec import LayerSpec, Rope

T, D = 256, 32
PLAIN = LayerSpec("full", 4, 2, D, D, scale=1.0)
TURNED = LayerSpec("full", 4, 2, D, D, rope=Rope(D, 10_000.0))


def _noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _pointing(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """q [T, 4, D] and k [T, 2, D] whose scores are ``logits`` [T] for every query."""
    q, k = torch.zeros(T, 4, D).double(), torch.zeros(T, 2, D).double()
    q[..., 0] = 1.0
    k[..., 0] = logits[:, None]
    return q, k


def _said(layer: Any, *, context: int = T) -> dict[str, str]:
    """Title-less sentences of a model whose every layer has these figures."""
    facts = layer_facts(layer)
    document = {"context": context, "layers": [facts | {"layer": i} for i in range(6)]}
    return {x.name: f"{x.figure} {x.means}" for x in findings(document)}


def test_uniform_attention_is_seen_as_uniform() -> None:
    found = look(PLAIN, *_pointing(torch.zeros(T)), _noise(T, 2, D))
    a, seen = found.attention, np.arange(T // 2 + 1, T + 1)
    assert a is not None
    assert found.chosen is not None
    for n, share in a.sink.items():
        assert share.numpy() == pytest.approx(np.full(4, (n / seen).mean()), abs=1e-9)
    assert a.needed[0.9][:, 0].numpy() == pytest.approx(
        np.full(4, np.ceil(0.9 * seen - 1e-6).mean()), abs=1e-9
    )
    assert a.entropy.numpy() == pytest.approx(np.full(4, np.log(seen).mean()), abs=1e-9)
    assert a.window[64].numpy() == pytest.approx(np.full(4, (64 / seen).mean()), abs=1e-9)
    for rule in ("recent", "best", "heavy"):
        assert float(found.chosen.kept[rule][0.2][0]) == pytest.approx(26 / 128, abs=1e-9)
    said = _said(found)
    assert "Little rests on them here" in said["sinks"]
    assert "Attention is spread wide" in said["concentration"]
    assert "hardly persist" in said["heavy"]
    assert "no steady trend" in said["depth"]


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
def test_a_planted_sink_is_seen_to_a_thousandth(share: float) -> None:
    """A first token that gets this share from a query that sees T tokens."""
    logits = torch.zeros(T)
    logits[0] = math.log(share / (1 - share) * (T - 1))
    found = look(PLAIN, *_pointing(logits), _noise(T, 2, D))
    weight, seen = math.exp(float(logits[0])), np.arange(T // 2 + 1, T + 1)
    assert found.attention is not None
    expected = (weight / (weight + seen - 1)).mean()
    assert found.attention.sink[1].numpy() == pytest.approx(np.full(4, expected), abs=1e-3)
    assert "write sinks:4" in _said(found)["sinks"]


def test_a_sink_outside_the_window_of_a_layer_is_not_counted() -> None:
    logits = torch.zeros(T)
    logits[0] = 9.0
    spec = LayerSpec("sliding", 4, 2, D, D, scale=1.0, window=100)
    a = look(spec, *_pointing(logits), _noise(T, 2, D)).attention
    assert a is not None
    assert (a.sink, a.sink_queries, a.seen) == ({}, 0, 100)
    assert (
        "No layer sees the first tokens"
        in _said(look(spec, *_pointing(logits), _noise(T, 2, D)))["sinks"]
    )


def test_chunks_are_seen_from_their_first_token() -> None:
    spec = LayerSpec("chunked", 4, 2, D, D, scale=1.0, window=100)
    a = look(spec, *_pointing(torch.zeros(T)), _noise(T, 2, D)).attention
    assert a is not None
    assert a.seen == np.mean([p % 100 + 1 for p in range(T // 2, T)])


def test_heavy_hitters_that_stay_and_that_leave() -> None:
    """Eight of the tokens get most attention; then they, or eight others, get it again."""
    stay = torch.zeros(T)
    stay[20:100:10] = 5.0
    found = look(PLAIN, *_pointing(stay), _noise(T, 2, D)).chosen
    assert found is not None
    assert float(found.beyond["heavy"][0.1].min()) > 0.85
    assert float(found.beyond["recent"][0.1].max()) < 0.3

    q, k = _pointing(torch.zeros(T))
    q[T // 2 :, :, 0], q[T // 2 :, :, 1] = 0.0, 1.0
    k[20:100:10, :, 0], k[25:105:10, :, 1] = 5.0, 5.0
    left = look(PLAIN, q, k, _noise(T, 2, D))
    assert left.chosen is not None
    assert float(left.chosen.beyond["heavy"][0.1].max()) < 0.1
    assert float(left.chosen.beyond["best"][0.1].min()) > 0.85
    assert "hardly persist" in _said(left)["heavy"]


def test_keys_that_stand_out_are_found_by_their_keys() -> None:
    q, k = torch.zeros(T, 4, D).double(), torch.zeros(T, 2, D).double()
    k[..., 0] = 1.0
    k[30:110:8, :, 0], k[30:110:8, :, 1] = 0.0, 1.0
    q[..., 1] = 6.0
    found = look(PLAIN, q, k, _noise(T, 2, D))
    assert found.chosen is not None
    assert float(found.chosen.beyond["distinct"][0.1].min()) > 0.9
    assert "Keys alone say something" in _said(found)["likeness"]
    away = look(PLAIN, -q, k, _noise(T, 2, D))
    assert away.chosen is not None
    assert float(away.chosen.beyond["distinct"][0.1].max()) < 0.03
    assert "a poor guide" in _said(away)["likeness"]


@pytest.mark.parametrize("times", [6.0, 20.0])
def test_a_planted_outlier_channel_is_seen(times: float) -> None:
    k = _noise(T, 2, D)
    k[:, 1, 7] *= times
    found = look(TURNED, _noise(T, 4, D, seed=2), k, _noise(T, 2, D, seed=3))
    assert found.stored is not None
    before, after, v = (found.stored.streams[s] for s in ("k", "k_rope", "v"))
    assert outliers(before.channels) == [[], [7]]
    assert float(before.outlier[1]) == pytest.approx(times, rel=0.15)
    assert float(before.outlier[0]) < 1.3
    # RoPE turns the channel into its partner, half the head away.
    assert float(after.outlier[1]) < 0.85 * times
    assert after.channels[1].argsort(descending=True)[:2].sort().values.tolist() == [7, 23]
    assert outliers(v.channels) == [[], []]
    # Such a channel spoils a scale shared by the channels of a token, and no scale of its own.
    wrong = (
        coded(x.transpose(0, 1), way) - x.transpose(0, 1)
        for x in (k,)
        for way in ("token", "channel")
    )
    others = [float(e[1, :, :7].square().mean()) for e in wrong]
    assert others[0] > 3 * others[1]
    assert float(found.coded["k_token"][1]) > 1.5 * float(found.coded["k_channel_before"][1])


def test_noise_has_no_outliers_and_no_favourite_way() -> None:
    found = look(TURNED, _noise(T, 4, D, seed=2), _noise(T, 2, D), _noise(T, 2, D, seed=3))
    assert found.stored is not None
    for stream in found.stored.streams.values():
        assert outliers(stream.channels) == [[], []]
        token, channel = stream.errors["token"], stream.errors["channel"]
        # techniques.md knows the error of such codes on normal noise: 0.0061 of the energy.
        assert token.numpy() == pytest.approx(np.full(2, 0.0061), rel=0.1)
        assert channel.numpy() == pytest.approx(np.full(2, 0.0061), rel=0.1)
    assert "K has no channel that would spoil" in _said(found)["outliers"]


def test_a_large_token_spoils_values_coded_per_channel() -> None:
    """What attention rarely reads should not cost those that it reads."""
    q, k = _pointing(torch.zeros(T))
    k[40::32, :, 0] = -30.0
    v = _noise(T, 2, D)
    v[40::32] *= 30
    found = look(PLAIN, q, k, v)
    assert float(found.coded["v_channel"].min()) > 10 * float(found.coded["v_token"].max())
    assert ", V per token" in _said(found)["errors"]


@pytest.mark.parametrize("rank", [1, 3, 17])
def test_a_planted_rank_is_seen(rank: int) -> None:
    basis = torch.linalg.qr(_noise(2 * D, rank, seed=5)).Q
    coordinates = torch.linalg.qr(_noise(T, rank)).Q  # all directions alike
    k = (coordinates @ basis.T).view(T, 2, D)
    found = look(PLAIN, _noise(T, 4, D), k, _noise(T, 2, D, seed=3)).stored
    assert found is not None
    assert found.rank["k"] == rank
    assert found.rank["v"] > 0.8 * 2 * D


def test_neighbours_and_the_mean_key() -> None:
    same = torch.ones(T, 2, D).double()
    found = look(PLAIN, _noise(T, 4, D), same, _noise(T, 2, D)).stored
    assert found is not None
    assert found.neighbours["k"].tolist() == pytest.approx([1, 1])
    assert found.mean_key["k"].tolist() == pytest.approx([1, 1])
    assert found.streams["k"].steady.tolist() == pytest.approx([1, 1])
    same[1::2] *= -1
    turns = look(PLAIN, _noise(T, 4, D), same, _noise(T, 2, D)).stored
    assert turns is not None
    assert turns.neighbours["k"].tolist() == pytest.approx([-1, -1])
    assert float(turns.streams["k"].steady.max()) < 1e-9


def test_zeros_give_figures_and_no_nan() -> None:
    zero = torch.zeros(T, 2, D).double()
    facts = layer_facts(look(TURNED, torch.zeros(T, 4, D).double(), zero, zero))
    assert "nan" not in str(facts)
    assert "inf" not in str(facts)


def test_trends_over_layers() -> None:
    assert rank_correlation([5.0, 4.0, 3.0, 1.0]) == pytest.approx(-1)
    assert rank_correlation([1.0, 1.0, 1.0]) == 0
    facts = layer_facts(look(PLAIN, *_pointing(torch.zeros(T)), _noise(T, 2, D)))

    def told(entropies: list[float], **change: Any) -> str:
        layers = [
            facts | change | {"layer": i, "attention": facts["attention"] | {"entropy": [e] * 4}}
            for i, e in enumerate(entropies)
        ]
        said = {x.name: x.means for x in findings({"context": T, "layers": layers})}
        return said["depth"]

    assert told([5, 4.5, 4, 3, 2, 1]).startswith("On the whole it narrows")
    assert told([1, 2, 3, 4, 4.5, 5]).startswith("On the whole it widens")
    assert told([3, 2, 3, 2, 3, 2.1]).startswith("There is no steady trend")
    assert told([5, 4, 3]).startswith("3 layers are too few")


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0 %"), (0.3842, "38 %"), (0.0421, "4.2 %"), (0.0004, "0.04 %")]
)
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text
