"""Models of packed weights: close to the dense ones, the same bits however a step is cut."""

from __future__ import annotations

import pydoc_data.topics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.native.linear_cases import packed, random_bytes
from torch import Tensor

from kvik import machine, native
from kvik.bench.decode_bytes import held_bytes
from kvik.engine.session import Session
from kvik.errors import ModelError
from kvik.models import Model, load_model
from kvik.models.decoder import Decoder
from kvik.models.packed_layer import PackedLayer
from kvik.models.parts import Weight
from kvik.models.weights import load_weights
from kvik.ops.native_linear import Packed, pack
from kvik.spec import ModelSpec
from kvik.testing.choices import clear_choices

from .dense_cache import DenseCache
from .test_decoder import GEMMA, LAYERS, run
from .test_weights import converted, float_tensors, gguf_name, one_layer, write_gguf

__all__ = ["write_gguf"]

pytestmark = pytest.mark.skipif(
    native.library() is None, reason="kvik is installed without the native library"
)


@pytest.fixture(autouse=True)
def torch_alone() -> Iterator[None]:
    """Torch at one thread, as beside a packed model: more of them wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SPEC = ModelSpec("tiny", "random", LAYERS["full"], context=64, vocab=97, hidden=64, ffn=96)


def models(spec: ModelSpec, kind: str) -> tuple[Model, Model]:
    """The same random model with packed weights and with their values in float64."""
    matrices: dict[str, Packed] = {}

    def take(name: str, shape: tuple[int, ...]) -> Weight:
        seed = sum(map(ord, name))
        if len(shape) == 2:
            scale = (3.0 if "embed" in name else 1.0) / np.sqrt(shape[1])
            raw = random_bytes(kind, *shape, seed=seed)
            if kind == "F32":
                raw = (raw.view(np.float32) * np.float32(scale)).view(np.uint8)
            matrices[name] = pack(raw, kind, shape)
            return matrices[name]
        noise = 0.1 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        return noise + 1 if "norm" in name else noise

    def values(name: str, shape: tuple[int, ...]) -> Tensor:
        found = take(name, shape)
        if isinstance(found, Packed):
            return found.rows(range(shape[0])).double()
        return found.double()

    fast = Model(spec.name, spec, Decoder.build(take, spec))
    return fast, Model(spec.name, spec, Decoder.build(values, spec))


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F32"])
@pytest.mark.parametrize("layers", ["full", "sliding", "chunked", "shared", "latent", "state"])
@pytest.mark.parametrize(
    "options",
    [{"attention_bias": "qkvo"}, GEMMA | {"tied": False, "final_softcap": 9.0}],
    ids=["llama", "gemma"],
)
def test_packed_models_agree_with_dense_ones(
    kind: str, layers: str, options: dict[str, object]
) -> None:
    chosen = LAYERS[layers]
    if layers == "latent":  # rows of whole blocks
        chosen = (chosen[0], replace(chosen[1], v_dim=32))
    if layers == "state":
        chosen = (replace(chosen[0], state_shape=(2, 8, 16)), chosen[1])
    spec = replace(SPEC, layers=chosen, **options)
    fast, exact = models(spec, kind)
    generator = torch.Generator().manual_seed(5)
    texts = [torch.randint(0, 97, (n,), generator=generator) for n in (23, 1, 14)]
    alone = [run(fast, [text], chunk=64)[0] for text in texts]
    for rows, text in zip(alone, texts, strict=True):
        wanted = run(exact, [text], chunk=64)[0]
        assert (rows - wanted).abs().max() < 2e-3 * wanted.abs().max()
    for chunk in (1, 7):
        for rows, one in zip(run(fast, texts, chunk), alone, strict=True):
            torch.testing.assert_close(rows, one, rtol=0, atol=1e-5 * float(one.abs().max()))


def test_layers_of_packed_weights_take_two_native_calls() -> None:
    fast, exact = models(SPEC, "Q4_1")
    assert all(isinstance(layer, PackedLayer) for layer in fast.decoder.layers)
    assert not any(isinstance(layer, PackedLayer) for layer in exact.decoder.layers)
    assert fast.decoder.dtype == torch.float32


def test_no_rows_give_no_logits() -> None:
    fast, _ = models(SPEC, "Q4_1")
    cache, tokens = DenseCache(SPEC), torch.arange(8)
    cache.plan([0] * 8, tokens)
    none = torch.empty(0, dtype=torch.int64)
    assert fast.forward(tokens, tokens, cache, none).shape == (0, 97)


def test_identities_tell_arithmetic_and_weights_apart() -> None:
    fast, exact = models(SPEC, "Q4_1")
    assert fast.identity == models(SPEC, "Q4_1")[0].identity
    seen = {fast.identity, exact.identity, models(SPEC, "Q4_0")[0].identity}
    embed = fast.decoder.embed
    assert isinstance(embed, Packed)
    for change in ({"type": "Q4_K"}, {"unit": 2.0}, {"data": embed.data ^ 1}):
        decoder = replace(fast.decoder, embed=replace(embed, **change))
        seen.add(Model("tiny", SPEC, decoder).identity)
    assert len(seen) == 6


def test_norms_are_never_packed() -> None:
    fast, _ = models(SPEC, "Q4_1")

    def take(name: str, shape: tuple[int, ...]) -> Weight:
        return packed("F32", *shape, 1) if len(shape) == 1 else packed("Q4_1", *shape)

    with pytest.raises(ModelError, match=r"attn_norm\.weight' is packed"):
        Decoder.build(take, fast.spec)


def test_rows_of_q_and_k_are_put_in_halves(write_gguf: Callable[..., Path]) -> None:
    spec = one_layer(hidden=64, vocab=8)
    tensors = float_tensors(spec)
    plain = {name: values for name, (values, _) in tensors.items()}
    for part, heads in {"attn_q": 4, "attn_k": 2}.items():
        name = f"blk.0.{part}.weight"
        tensors[name] = (converted(plain[name], heads), None)
    ours = load_weights(write_gguf(tensors), spec, packed=True)
    for name, weight in ours.items():
        if isinstance(weight, Packed):
            values = weight.rows(range(weight.shape[0])).numpy()
            assert np.array_equal(values, plain[gguf_name(name)]), name
    assert {name for name, weight in ours.items() if isinstance(weight, Tensor)} == {
        "norm.weight",
        "layers.0.attn_norm.weight",
        "layers.0.ffn_norm.weight",
    }


def test_values_that_are_no_numbers_are_refused(write_gguf: Callable[..., Path]) -> None:
    spec = one_layer(hidden=64, vocab=8)
    bad = np.full((8, 64), np.nan, np.float32)
    path = write_gguf(float_tensors(spec) | {"token_embd.weight": (bad, None)})
    with pytest.raises(ModelError, match=r"token_embd\.weight: .*NaN or infinity: fetch it again"):
        load_weights(path, spec, packed=True)


def test_loading_packs_unless_told_otherwise(tiny_model: Path) -> None:
    threads = machine.threads()
    fast, exact = load_model(tiny_model), load_model(tiny_model, dense=True)
    assert isinstance(fast.decoder.embed, Packed)
    assert isinstance(exact.decoder.embed, Tensor)
    assert torch.get_num_threads() == threads
    load_model(tiny_model)
    assert torch.get_num_threads() == 1, "its threads would spin beside the library's"
    assert machine.threads() == threads
    assert fast.identity != exact.identity
    ids = list(range(40))
    rows = [Session(m, "fp32", max_tokens=64).feed(ids, logits="all") for m in (fast, exact)]
    torch.testing.assert_close(rows[0], rows[1], atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_real_models_lose_nothing_that_matters(name: str) -> None:
    fast, exact = load_model(name), load_model(name, dense=True)
    assert fast.path is not None
    assert held_bytes(fast) <= 1.5 * fast.path.stat().st_size
    ids = fast.tokenizer.encode(pydoc_data.topics.topics["assignment"])[:200]
    ours, theirs = (
        Session(m, "fp32", max_tokens=256).feed(ids, logits="all").double() for m in (fast, exact)
    )
    p, q = ours.log_softmax(-1), theirs.log_softmax(-1)
    divergence = (q.exp() * (q - p)).sum(-1)
    # Scales of the file kept exactly in SmolLM2's Q4_1, to 11 bits in Gemma's Q4_K.
    assert divergence.max() < 1e-4
    clear = clear_choices(theirs, float((ours - theirs).abs().max()))
    assert clear.float().mean() > 0.9
    assert torch.equal(ours.argmax(-1)[clear], theirs.argmax(-1)[clear])
    session = Session(fast, "fp32", max_tokens=64)
    steps = torch.cat([session.feed([i], logits="all") for i in ids[:20]])
    assert torch.equal(steps.double(), ours[:20])
