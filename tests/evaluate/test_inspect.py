"""``kvik inspect``: its figures against all of attention at once, in plain float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.evaluate.inspected import Recording, entropy, first_seen, look, needed, weights
from tests.models.dense_cache import rotate

from kvik.engine.session import Session
from kvik.errors import KvikError, ModelError
from kvik.evaluate.inspect import attention as attention_module
from kvik.evaluate.inspect.attention import QUANTILES, attention, blocks, window_sizes
from kvik.evaluate.inspect.chosen import BUDGETS
from kvik.evaluate.inspect.observe import LayerFigures, Observer
from kvik.evaluate.inspect.stored import ENERGY
from kvik.models import Model
from kvik.models.random import random_model
from kvik.ops import Scoring
from kvik.spec import LayerSpec, ModelSpec, Rope
from kvik.testing.models import grouped, latent, stateful

T = 130
IDS = [(7 * i * i + 3 * i) % 89 for i in range(T)]


def _tiny(*layers: LayerSpec) -> Model:
    spec = ModelSpec("tiny", "llama", layers, context=4096, vocab=96, hidden=48, ffn=64)
    return random_model(spec, seed=3, dtype=torch.float64)


def mha() -> Model:
    return _tiny(LayerSpec("full", 4, 4, 16, 16, rope=Rope(16, 10_000.0)))


def mqa() -> Model:
    """One KV head, partial RoPE, another dimension of V, no RoPE, windows that end in the text."""
    rope = Rope(16, 1000.0, "interleaved", offset=8)
    return _tiny(
        LayerSpec("full", 4, 1, 32, 16, rope=rope, scale=0.2),
        LayerSpec("sliding", 4, 1, 32, 16, window=T, rope=None),
        LayerSpec("sliding", 4, 1, 32, 16, window=100, rope=rope),
    )


MODELS = {"mha": mha, "gqa and sliding": grouped, "mqa": mqa, "shared": stateful, "latent": latent}


def _looked(model: Model) -> tuple[list[LayerFigures], Recording]:
    """What is told of every layer, and what the model gave to the dense cache behind."""
    cache = Recording(model.spec)
    positions = torch.arange(T)
    cache.plan([0] * T, positions)
    observer = Observer(cache, model.spec)
    model.forward(torch.tensor(IDS), positions, observer)
    return [observer.layers[i] for i in range(len(model.spec.layers))], cache


@pytest.mark.parametrize("name", MODELS)
def test_attention_figures_are_those_of_the_whole_matrix(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_module, "BLOCK", 12_000)  # several blocks in every layer
    model = MODELS[name]()
    (layers, cache), middle = _looked(model), T // 2
    looked = 0
    for found in layers:
        spec = found.spec
        if spec.kind == "state":
            assert found.attention is None
            assert "no tokens" in found.why[0]
            continue
        looked += 1
        source = found.layer if spec.source is None else spec.source
        q, k = cache.given[found.layer][0], cache.given[source][1]
        assert k is not None
        w = weights(spec, model.spec.layers[source], q, k)
        later, a = w[:, middle:], found.attention
        assert a is not None
        firsts = [first_seen(w[0, p]) for p in range(middle, T)]
        assert a.queries == T - middle
        assert a.seen == pytest.approx(
            np.mean([p - f + 1 for p, f in zip(range(middle, T), firsts, strict=True)])
        )
        sees = [i for i, f in enumerate(firsts) if f == 0]
        assert a.sink_queries == len(sees)
        assert sorted(a.sink) == ([1, 4] if sees else [])
        for n in a.sink:
            expected = later[:, sees, :n].sum(-1).mean(-1)
            assert a.sink[n].numpy() == pytest.approx(expected, abs=1e-9)
        for share, spread in a.needed.items():
            counts = np.array([[needed(row, share) for row in head] for head in later.tolist()])
            expected = np.column_stack(
                [counts.mean(1), *(np.quantile(counts, q, axis=1) for q in QUANTILES)]
            )
            assert spread.numpy() == pytest.approx(expected, abs=1e-9)
        assert sorted(a.window) == [16, 64] == list(window_sizes(T))
        for size in a.window:
            near = np.tril(np.ones((T, T)), 0) - np.tril(np.ones((T, T)), -size)
            both = np.maximum(near, np.arange(T) < 4)
            for got, mask in ((a.window[size], near), (a.streaming[size], both)):
                expected = (w * mask)[:, middle:].sum(-1).mean(-1)
                assert got.numpy() == pytest.approx(expected, abs=1e-9)
        expected = np.array([np.mean([entropy(row) for row in head]) for head in later])
        assert a.entropy.numpy() == pytest.approx(expected, abs=1e-9)
        per_head = w.reshape(spec.kv_heads, spec.group, T, T)
        assert a.early.numpy() == pytest.approx(per_head[:, :, :middle].sum((1, 2)), abs=1e-9)
        assert a.late.numpy() == pytest.approx(per_head[:, :, middle:].sum((1, 2)), abs=1e-9)
    assert looked


@pytest.mark.parametrize("name", MODELS)
def test_choices_are_those_of_the_whole_matrix(name: str) -> None:
    model = MODELS[name]()
    (layers, cache), middle = _looked(model), T // 2
    for found in layers:
        if found.chosen is None:
            continue
        spec, c = found.spec, found.chosen
        source = found.layer if spec.source is None else spec.source
        q, k = cache.given[found.layer][0], cache.given[source][1]
        assert k is not None
        w = weights(spec, model.spec.layers[source], q, k)
        w = w.reshape(spec.kv_heads, spec.group, T, T)
        low = first_seen(w[0, 0, middle])
        assert c.candidates == middle - low
        turned = rotate(k.double(), torch.arange(T), model.spec.layers[source].rope).numpy()
        for skip, part in ((0, c.kept), (4 if low == 0 else 0, c.beyond)):
            together: dict[float, list[tuple[float, float]]] = {b: [] for b in BUDGETS}
            for head in range(spec.kv_heads):
                early = w[head, :, :middle, low:middle].sum((0, 1))
                late = w[head, :, middle:, low:middle].sum((0, 1))
                keys = turned[low:middle, head]
                unit = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
                mean = unit.mean(0)
                scores = {
                    "heavy": early,
                    "distinct": -(unit @ mean) / np.linalg.norm(mean),
                    "small": -np.linalg.norm(keys, axis=-1),
                    "recent": np.arange(len(early)),
                    "best": late,
                }
                for b in BUDGETS:
                    together[b] += list(zip(early, late, strict=True))
                    for rule, score in scores.items():
                        count = max(1, round(b * (len(early) - skip)))
                        order = np.argsort(score[skip:])
                        best, edge = order[-count:], score[skip:][order[-count - 1 : -count + 1]]
                        if np.ptp(edge) < 1e-9:  # the same token twice: either may be chosen
                            continue
                        expected = late[skip:][best].sum() / late[skip:].sum()
                        assert float(part[rule][b][head]) == pytest.approx(expected, abs=1e-9)
            for b, pairs in together.items():
                count = spec.kv_heads * max(1, round(b * c.candidates))
                pairs.sort(reverse=True)
                expected = sum(late for _, late in pairs[:count]) / sum(x for _, x in pairs)
                assert c.pooled[b] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", ["mha", "gqa and sliding", "mqa"])
def test_stored_figures_are_those_of_the_arrays(name: str) -> None:
    model = MODELS[name]()
    layers, cache = _looked(model)
    for found in layers:
        _, k, v = cache.given[found.layer]
        assert k is not None
        assert v is not None
        assert found.stored is not None
        arrays = {
            "k": k.numpy(),
            "k_rope": rotate(k.double(), torch.arange(T), found.spec.rope).numpy(),
            "v": v.numpy(),
        }
        for stream, x in arrays.items():
            s = found.stored.streams[stream]
            for head in range(found.spec.kv_heads):
                rows = x[:, head]
                size = np.sqrt((rows**2).mean(0))
                assert s.channels[head].numpy() == pytest.approx(size, rel=1e-9)
                middle = np.sort(size)[(len(size) - 1) // 2]
                assert float(s.outlier[head]) == pytest.approx(size.max() / middle)
                steady = (rows.mean(0) ** 2).sum() / (rows**2).sum(1).mean()
                assert float(s.steady[head]) == pytest.approx(steady)
                told = (float(s.least[head]), float(s.most[head]), float(s.std[head]))
                assert told == pytest.approx((rows.min(), rows.max(), rows.std()))
        for stream in ("k", "k_rope"):
            unit = arrays[stream] / np.linalg.norm(arrays[stream], axis=-1, keepdims=True)
            near = (unit[1:] * unit[:-1]).sum(-1).mean(0)
            assert found.stored.neighbours[stream].numpy() == pytest.approx(near)
            mean = unit.mean(0) / np.linalg.norm(unit.mean(0), axis=-1, keepdims=True)
            typical = (unit * mean).sum(-1).mean(0)
            assert found.stored.mean_key[stream].numpy() == pytest.approx(typical)
        flat = {stream: x.reshape(T, -1) for stream, x in arrays.items()}
        flat["kv"] = np.hstack([flat[s] / np.linalg.norm(flat[s]) for s in ("k", "v")])
        for stream, rows in flat.items():
            energy = np.cumsum(np.linalg.svd(rows, compute_uv=False) ** 2)
            count = int(np.searchsorted(energy, ENERGY * energy[-1])) + 1
            assert found.stored.rank[stream] == count
            assert found.stored.width[stream] == rows.shape[1]


def _int4(x: np.ndarray) -> np.ndarray:
    """Asymmetric 4-bit codes of x [..., group], their scale and minimum in 16 bits."""
    low = x.min(-1, keepdims=True).astype(np.float16).astype(np.float64)
    step = ((x.max(-1, keepdims=True) - low) / 15).astype(np.float16).astype(np.float64)
    return low + step * np.clip(np.round((x - low) / step), 0, 15)


@pytest.mark.parametrize("name", ["mha", "gqa and sliding", "mqa"])
def test_errors_of_four_bits_are_those_of_a_plain_coder(name: str) -> None:
    """To 1 %: kvik moves a scale whose rounding would leave a value too far outside."""
    model = MODELS[name]()
    (layers, cache), middle = _looked(model), T // 2
    for found in layers:
        spec = found.spec
        q, k, v = cache.given[found.layer]
        assert k is not None
        assert v is not None
        at = torch.arange(T)

        def coarse(x: torch.Tensor, way: str) -> torch.Tensor:
            """x [T, H, D] coded along channels of a token or tokens of a channel."""
            group = int(np.gcd(32, x.shape[-1]))
            whole = T // group * group
            rows = x[:whole].numpy()
            if way == "token":
                got = _int4(rows.reshape(*rows.shape[:2], -1, group)).reshape(rows.shape)
            else:
                columns = rows.transpose(1, 2, 0)
                got = _int4(columns.reshape(*columns.shape[:2], -1, group))
                got = got.reshape(columns.shape).transpose(2, 0, 1)
            return torch.cat([torch.from_numpy(got), x[whole:]])

        turned = rotate(k, at, spec.rope)
        plain = LayerSpec(**(vars(spec) | {"rope": None}))
        exact = weights(plain, plain, rotate(q, at, spec.rope), turned)
        keys = {f"k_{way}": coarse(turned, way) for way in ("token", "channel")}
        keys["k_channel_before"] = rotate(coarse(k, "channel"), at, spec.rope)
        values = {f"v_{way}": coarse(v, way) for way in ("token", "channel")}
        repeated = v.transpose(0, 1).repeat_interleave(spec.group, 0).numpy()
        out = (exact @ repeated)[:, middle:]
        wrong = {
            name: (weights(plain, plain, rotate(q, at, spec.rope), x) @ repeated)[:, middle:] - out
            for name, x in keys.items()
        }
        for way, x in values.items():
            coded = x.transpose(0, 1).repeat_interleave(spec.group, 0).numpy()
            wrong[way] = (exact @ coded)[:, middle:] - out

        def per_head(x: np.ndarray, heads: int = spec.kv_heads) -> np.ndarray:
            return (x**2).reshape(heads, -1).sum(-1)

        assert sorted(found.coded) == sorted(wrong)
        for way, x in wrong.items():
            expected = per_head(x) / per_head(out)
            assert found.coded[way].numpy() == pytest.approx(expected, rel=0.01)
        assert found.stored is not None
        for stream, x in (("k", k), ("k_rope", turned), ("v", v)):
            for way, got in found.stored.streams[stream].errors.items():
                gone = ((coarse(x, way) - x) ** 2).sum((0, 2)) / (x**2).sum((0, 2))
                assert got.numpy() == pytest.approx(gone.numpy(), rel=0.01)


@pytest.mark.parametrize("name", MODELS)
def test_the_model_computes_what_it_computes_unobserved(name: str) -> None:
    model = MODELS[name]()
    plain = Session(model, "fp32", max_tokens=T).feed(IDS, logits="all", chunk=T)
    session = Session(model, "fp32", max_tokens=T)
    session.cache.plan([session.cache.create()], [T])
    observer = Observer(session.cache, model.spec)
    seen = model.forward(torch.tensor(IDS), session.cache.positions, observer)
    assert torch.equal(seen.float(), plain)
    assert sorted(observer.layers) == list(range(len(model.spec.layers)))


def test_no_block_holds_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_module, "BLOCK", 20_000)
    spec = LayerSpec("full", 4, 2, 8, 8)
    q, k = torch.randn(2, 2, 1200, 8), torch.randn(2, 1200, 8)
    sizes = [b.weights.numel() for b in blocks(q, k, spec, Scoring(0.3))]
    assert max(sizes) <= 20_000 * 1.25
    assert len(sizes) > 100
    narrow = LayerSpec("sliding", 4, 2, 8, 8, window=50)
    parts = list(blocks(q, k, narrow, Scoring(0.3)))
    assert max(b.weights.shape[-1] for b in parts) < 120


def test_each_layer_counts_every_query_once() -> None:
    spec = LayerSpec("full", 2, 1, 8, 8)
    q, k = torch.randn(1, 2, 300, 8), torch.randn(1, 300, 8)
    a = attention(blocks(q, k, spec, Scoring(1.0)), spec, 300)
    assert float(a.early.sum() + a.late.sum()) == pytest.approx(2 * 300, abs=1e-4)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_no_number_is_refused(bad: float) -> None:
    spec = LayerSpec("full", 4, 2, 8, 8)
    q, k, v = torch.randn(70, 4, 8), torch.randn(70, 2, 8), torch.randn(70, 2, 8)
    k[3, 1, 2] = bad
    with pytest.raises(ModelError, match="layer 0 gives keys that are not finite"):
        look(spec, q, k, v)


def test_several_texts_at_once_are_refused() -> None:
    model = mha()
    session = Session(model, "fp32", max_tokens=T)
    cache = session.cache
    cache.plan([cache.create(), cache.create()], [10, 10])
    with pytest.raises(KvikError, match="one text in one step"):
        model.forward(torch.tensor(IDS[:20]), cache.positions, Observer(cache, model.spec))
    cache.abort()
