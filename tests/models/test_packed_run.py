"""Layers in one native call: the bits of layer by layer, and hostile arguments refused."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvik import native
from kvik.cache import KVCache, PagePool
from kvik.cache.table import Sequence
from kvik.engine.session import Session
from kvik.errors import KvikError
from kvik.models import Model
from kvik.models.packed_layer import PackedLayer
from kvik.models.packed_run import AT_ONCE, PackedRun
from kvik.ops.native_layers import LayerRun, LayerStores, Places
from kvik.recipe import Recipe

from .test_decoder import GEMMA, LAYERS
from .test_packed import SPEC, models, torch_alone

__all__ = ["torch_alone"]

pytestmark = pytest.mark.skipif(
    native.library() is None, reason="kvik is installed without the native library"
)

STEPS = (5, 1, 1, AT_ONCE, 1, AT_ONCE + 1, 1)  # the last but one goes layer by layer in any case


def logits(model: Model, recipe: str) -> Tensor:
    session = Session(model, recipe, max_tokens=sum(STEPS))
    ids = torch.randint(0, 97, (sum(STEPS),), generator=torch.Generator().manual_seed(3)).tolist()
    found, at = [], 0
    for count in STEPS:
        found.append(session.feed(ids[at : at + count], logits="all"))
        at += count
    return torch.cat(found)


@pytest.mark.parametrize("recipe", ["fp32", "int4:group=32", "int8+sinks:4+window:12"])
@pytest.mark.parametrize(
    ("layers", "options"),
    [
        (LAYERS["full"], {"attention_bias": "qkvo"}),
        (LAYERS["sliding"], GEMMA | {"tied": False, "final_softcap": 9.0}),
        (LAYERS["shared"], GEMMA),
        (LAYERS["state"], {}),
    ],
    ids=["llama", "gemma", "shared", "state"],
)
def test_a_run_of_layers_has_the_bits_of_layer_by_layer(
    layers: tuple[object, ...],
    options: dict[str, object],
    recipe: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if layers is LAYERS["state"]:
        layers = (replace(LAYERS["state"][0], state_shape=(2, 8, 16)), *layers[1:])
    layers = tuple(
        replace(each, k_dim=32, v_dim=32, rope=replace(each.rope, dim=32)) if each.k_dim else each
        for each in layers
    )
    fast, _ = models(replace(SPEC, context=128, layers=(*layers, *layers[1:]), **options), "Q4_1")
    steps: list[int] = []
    call = LayerRun.__call__

    def counted(run: LayerRun, x: Tensor, places: Places) -> Tensor:
        steps.append(len(x))
        return call(run, x, places)

    monkeypatch.setattr(LayerRun, "__call__", counted)
    at_once = logits(fast, recipe)
    assert steps == [count for count in STEPS if count <= AT_ONCE]
    monkeypatch.setattr(KVCache, "places", lambda cache, layers: None)
    one_by_one = logits(fast, recipe)
    assert len(steps) == len(STEPS) - 1
    assert torch.equal(at_once, one_by_one)


def test_what_a_cache_remembers_of_a_step_never_serves_another() -> None:
    """Alone and together, in any order, forked, cut back and dropped: the bits of a cache each."""
    fast, _ = models(replace(SPEC, context=256), "Q4_1")
    plan = Recipe.parse("int8").resolve(fast.spec)
    draw = random.Random(5)

    def cache_of() -> KVCache:
        return KVCache(plan, PagePool(plan.page_bytes, 4 << 20, poison=True))

    def step(cache: KVCache, sequences: list[Sequence], ids: list[int]) -> Tensor:
        cache.plan(sequences, [1] * len(sequences))
        return fast.forward(ids, cache.at, cache)

    cache = cache_of()
    sequences: list[Sequence] = [cache.create() for _ in range(3)]
    texts: list[list[int]] = [[], [], []]
    for turn in range(150):
        chosen = draw.sample(range(len(texts)), draw.randint(1, len(texts)))
        ids = [draw.randrange(97) for _ in chosen]
        found = step(cache, [sequences[i] for i in chosen], ids)
        if turn % 7 == 3:
            cache.abort()
            continue
        cache.commit()
        for i, token in zip(chosen, ids, strict=True):
            texts[i].append(token)
        if turn % 10 == 9:
            alone = cache_of()
            for i, row in zip(chosen, found, strict=True):
                twin = alone.create()
                for token in texts[i]:
                    wanted = step(alone, [twin], [token])
                    alone.commit()
                assert torch.equal(row, wanted[0])
        if turn % 20 == 5:
            sequences.append(cache.fork(sequences[0]))
            texts.append(list(texts[0]))
        if turn % 30 == 25:
            cache.free(sequences.pop(1))
            del texts[1]
        if turn % 25 == 12 and texts[0]:
            cache.cut(sequences[0], length := len(texts[0]) // 2)
            del texts[0][length:]


def test_runs_of_one_cache_are_told_apart() -> None:
    fast, _ = models(SPEC, "Q4_1")
    session = Session(fast, "fp32", max_tokens=64)
    session.cache.plan([session._sequence], [1])
    for layers in ([0], [1], [0, 1], [1, 0], [0]):
        places = session.cache.places(layers)
        assert places is not None
        assert [each.plan.index for each in places.stores.layers] == layers
    session.cache.abort()


def test_a_step_of_no_sequence_has_places_of_no_rows() -> None:
    fast, _ = models(SPEC, "Q4_1")
    session = Session(fast, "fp32", max_tokens=64)
    session.feed([1, 2])
    for _ in range(2):
        session.cache.plan([], [])
        places = session.cache.places([0, 1])
        assert places is not None
        assert places.rows == 0
        (run,) = fast.decoder._runs
        assert isinstance(run, PackedRun)
        assert run(torch.zeros(0, 64), session.cache).shape == (0, 64)
        session.cache.commit()


def test_what_the_kernels_cannot_attend_goes_layer_by_layer() -> None:
    fast, _ = models(SPEC, "Q4_1")  # heads of a dimension that is no multiple of 32
    (run,) = fast.decoder._runs
    assert isinstance(run, PackedRun)
    session = Session(fast, "none", max_tokens=8)
    session.cache.plan([session._sequence], [1])
    assert session.cache.places([0, 1]) is None
    session.cache.abort()
    assert torch.equal(session.feed([3, 4]), Session(fast, "none", max_tokens=8).feed([3, 4]))


def test_hostile_arguments_are_refused() -> None:
    fast, _ = models(SPEC, "Q4_1")
    run = LayerRun([each.ends for each in fast.decoder.layers if isinstance(each, PackedLayer)])
    session = Session(fast, "fp32", max_tokens=64)
    session.cache.plan([session._sequence], [2])
    places, place = session.cache.places([0, 1]), session.cache.place(0)
    assert places is not None
    assert place is not None
    with pytest.raises(KvikError, match=r"of 2 tokens; the weights give .* of 3"):
        run(torch.zeros(3, 64), places)
    with pytest.raises(KvikError, match=r"contiguous float32 \[n, 64\]"):
        run(torch.zeros(2, 32), places)
    with pytest.raises(KvikError, match="1 places of one step"):
        Places(places.stores, [place, place])
    wide = replace(place.layer, spec=replace(SPEC.layers[0], heads=8))
    for layers in ([place.layer], [wide, place.layer]):
        with pytest.raises(KvikError, match="the cache's layers take"):
            run(torch.zeros(2, 64), Places(LayerStores(layers, [0] * len(layers)), [place]))
    turns = place.turn.first
    for wrong in (turns[:1], turns[:, :1], turns[..., :1], turns[:, ::-1], turns.astype("f8")):
        for turn in ({"first": wrong}, {"second": wrong}):
            with pytest.raises(KvikError, match="angles are float32"):
                replace(place, turn=replace(place.turn, **turn))
    with pytest.raises(KvikError, match="at least one layer"):
        LayerRun([])
    other, _ = models(replace(SPEC, hidden=96), "Q4_1")
    assert isinstance(other.decoder.layers[0], PackedLayer)
    assert isinstance(fast.decoder.layers[0], PackedLayer)
    with pytest.raises(KvikError, match="one hidden size"):
        LayerRun([fast.decoder.layers[0].ends, other.decoder.layers[0].ends])
    session.cache.abort()
