"""Mixtures of experts: the arithmetic, and the position law from the engine to a comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny import write_tiny_model
from torch import Tensor

from kvik.engine.engine import Engine
from kvik.engine.request import Request
from kvik.engine.session import Session
from kvik.evaluate.compare import prepare, run
from kvik.evaluate.worker import Task, work
from kvik.models import Model, load_model, random_model
from kvik.models.feed_forward import Mixture
from kvik.spec import Experts, LayerSpec, ModelSpec, Rope
from kvik.testing import ConformanceError, check_engine, check_stack

from .test_families import TINY, filled, one_thread

__all__ = ["one_thread"]

FULL = LayerSpec("full", 6, 2, 32, 32, rope=Rope(32, 10_000.0))
SLIDING = replace(FULL, kind="sliding", window=24)
SPEC = ModelSpec(
    *("mixture", "random", (SLIDING, FULL, replace(FULL, rope=None))),
    context=4096,
    vocab=128,
    hidden=48,
    ffn=64,
    experts=Experts(5, 2, 40, dense=(1,)),
)


def model() -> Model:
    return random_model(SPEC, seed=5, dtype=torch.float64)


@pytest.mark.parametrize("normed", [True, False])
def test_a_mixture_is_the_weighted_sum_of_the_most_probable(normed: bool) -> None:
    experts = Experts(5, 3, 40, normed=normed)
    one = random_model(replace(SPEC, experts=experts), seed=5, dtype=torch.float64)
    mixture = one.decoder.layers[0].ffn
    assert isinstance(mixture, Mixture)
    x = torch.randn(7, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for row, got in zip(x, mixture(x), strict=True):
        odds = (mixture.router.weight @ row).exp()
        odds = odds / odds.sum()
        best = sorted(range(5), key=lambda e: -odds[e])[:3]
        whole = sum(odds[e] for e in best) if normed else 1.0
        wanted = sum(odds[e] / whole * mixture.experts[e](row[None])[0] for e in best)
        torch.testing.assert_close(got, wanted, atol=1e-12, rtol=0)


def test_layers_in_dense_have_one_network() -> None:
    kinds = [isinstance(layer.ffn, Mixture) for layer in model().decoder.layers]
    assert kinds == [True, False, True]


@pytest.mark.parametrize("recipe", ["fp16", "int8/int4+page:7"])
def test_however_a_request_is_served_its_answer_is_the_same(recipe: str) -> None:
    check_engine(recipe, model(), thorough=False)


def test_a_stack_is_right_on_a_mixture() -> None:
    check_stack("int8+sinks:2+window:18", model())


@dataclass(frozen=True)
class Overflowing(Mixture):
    """Experts with room for a few tokens of a step, as in training: what is too much is dropped."""

    def __call__(self, x: Tensor) -> Tensor:
        out = super().__call__(x)
        return torch.cat([out[:24], torch.zeros_like(out[24:])])


def test_a_mixture_whose_tokens_disturb_each_other_is_seen() -> None:
    one = model()
    layer = one.decoder.layers[0]
    assert isinstance(layer.ffn, Mixture)
    parts = {name: getattr(layer.ffn, name) for name in Mixture.__dataclass_fields__}
    broken = replace(layer, ffn=Overflowing(**parts))
    decoder = replace(one.decoder, layers=(broken, *one.decoder.layers[1:]))
    with pytest.raises(ConformanceError):
        check_engine("fp16", replace(one, decoder=decoder), thorough=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Mixtral with a tokenizer that spells in bytes."""
    transformers = pytest.importorskip("transformers")
    path = write_tiny_model(tmp_path / "mixtral")
    torch.manual_seed(3)
    config = transformers.MixtralConfig(
        **TINY | {"vocab_size": 258, "max_position_embeddings": 4096, "num_local_experts": 4}
    )
    filled(transformers.MixtralForCausalLM(config), gemma=False).save_pretrained(path)
    return path


def test_sessions_engines_and_comparisons_run_on_a_mixture(folder: Path) -> None:
    one = load_model(folder)
    assert one.spec.experts == Experts(4, 2, 96)
    ids = one.tokenizer.encode("experts of every kind")
    session, step, chosen = Session(one, "int8", max_tokens=64), list(ids), []
    for _ in range(8):
        step = [int(session.feed(step).argmax())]
        chosen += step
    engine = Engine(one, "int8", memory="8MiB")
    (answer,) = engine.generate([Request(tuple(ids), max_new=8)])
    assert list(answer.samples[0].tokens) == chosen[: len(answer.samples[0].tokens)]
    assert answer.samples[0].tokens

    class Quiet:
        def begin(self, recipe: str, total: int) -> None: ...
        def advance(self, stage: str, tokens: int) -> None: ...
        def end(self, result: dict[str, Any]) -> None: ...

    def launch(task: Task, place: Path, progress: Any) -> dict[str, Any]:
        return work(task, progress.advance)

    prepared = prepare(str(folder), ["fp32", "int8", "window:64"], context=300)
    full, int8, window = run(prepared, Quiet(), launch=launch, threads=1)["results"]
    assert (full["kl_mean"], full["top1"]) == (0.0, 1.0)
    assert 0 < int8["kl_mean"] < window["kl_mean"]
    assert int8["planned_bytes"] == int8["measured_bytes"]
