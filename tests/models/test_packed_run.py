"""Layers in one native call: the bits of layer by layer, and hostile arguments refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvik import native
from kvik.cache import KVCache
from kvik.engine.session import Session
from kvik.errors import KvikError
from kvik.models import Model
from kvik.models.packed_layer import PackedLayer
from kvik.models.packed_run import AT_ONCE, PackedRun
from kvik.ops.native_attention import Place
from kvik.ops.native_layers import LayerRun

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

    def counted(run: LayerRun, x: Tensor, places: Sequence[Place]) -> Tensor:
        steps.append(len(x))
        return call(run, x, places)

    monkeypatch.setattr(LayerRun, "__call__", counted)
    at_once = logits(fast, recipe)
    assert steps == [count for count in STEPS if count <= AT_ONCE]
    monkeypatch.setattr(KVCache, "places", lambda cache, layers: None)
    one_by_one = logits(fast, recipe)
    assert len(steps) == len(STEPS) - 1
    assert torch.equal(at_once, one_by_one)


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
    places = session.cache.places([0, 1])
    assert places is not None
    with pytest.raises(KvikError, match=r"2 tokens; its weights give .* of 3"):
        run(torch.zeros(3, 64), places)
    with pytest.raises(KvikError, match=r"contiguous float32 \[n, 64\]"):
        run(torch.zeros(2, 32), places)
    with pytest.raises(ValueError, match="shorter"):
        run(torch.zeros(2, 64), places[:1])
    wide = replace(places[0], layer=replace(places[0].layer, spec=replace(SPEC.layers[0], heads=8)))
    with pytest.raises(KvikError, match="layer 0 caches"):
        run(torch.zeros(2, 64), [wide, places[1]])
    for half in ({"second_cos": places[0].turn.cos}, {"second_sin": places[0].turn.sin}):
        with pytest.raises(KvikError, match="a cos and a sin"):
            replace(places[0].turn, **half)
    with pytest.raises(KvikError, match="at least one layer"):
        LayerRun([])
    with pytest.raises(KvikError, match="angles are float32"):
        replace(
            places[0], turn=replace(places[0].turn, cos=torch.zeros(3, 4), sin=torch.zeros(3, 4))
        )
    other, _ = models(replace(SPEC, hidden=96), "Q4_1")
    assert isinstance(other.decoder.layers[0], PackedLayer)
    assert isinstance(fast.decoder.layers[0], PackedLayer)
    with pytest.raises(KvikError, match="one hidden size"):
        LayerRun([fast.decoder.layers[0].ends, other.decoder.layers[0].ends])
    session.cache.abort()
