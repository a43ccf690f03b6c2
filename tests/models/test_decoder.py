"""The decoder: how a batch is cut does not matter, and what does not fit is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvik.errors import KvikError, ModelError
from kvik.models import random_model
from kvik.models.decoder import Decoder
from kvik.models.model import Model
from kvik.spec import LayerSpec, ModelSpec, Rope

from .dense_cache import DenseCache

ROPE = Rope(dim=16, theta=1e4)
FULL = LayerSpec("full", heads=4, kv_heads=2, k_dim=16, v_dim=16, rope=ROPE)
LAYERS = {
    "full": (FULL, FULL),
    "sliding": (replace(FULL, kind="sliding", window=6), FULL),
    "chunked": (replace(FULL, kind="chunked", window=5), FULL),
    "shared": (FULL, replace(FULL, kind="shared", source=0)),
    "latent": (
        FULL,
        LayerSpec(
            "latent",
            heads=4,
            kv_heads=1,
            k_dim=40,
            v_dim=32,
            rope=Rope(dim=8, theta=1e4, offset=32, layout="interleaved"),
        ),
    ),
    "state": (
        LayerSpec("state", heads=0, kv_heads=0, k_dim=0, v_dim=0, state_shape=(2, 8, 12)),
        FULL,
    ),
}
SPEC = ModelSpec("tiny", "random", LAYERS["full"], context=64, vocab=97, hidden=48, ffn=64)
GEMMA = {"qk_norm": True, "post_norms": True, "activation": "gelu_tanh", "embed_scale": 7.0}


def spec(kind: str, **options: object) -> ModelSpec:
    return replace(SPEC, layers=LAYERS[kind], **options)


def run(model: Model, texts: list[Tensor], chunk: int) -> list[Tensor]:
    """All texts side by side, at most ``chunk`` tokens of each a step."""
    cache, got = DenseCache(model.spec), [[] for _ in texts]
    for start in range(0, max(map(len, texts)), chunk):
        parts = {
            s: text[start : start + chunk] for s, text in enumerate(texts) if len(text) > start
        }
        positions = torch.cat([start + torch.arange(len(part)) for part in parts.values()])
        cache.plan([s for s, part in parts.items() for _ in part], positions)
        logits = model.forward(torch.cat(list(parts.values())), positions, cache)
        cache.commit()
        for s, rows in zip(parts, logits.split([len(p) for p in parts.values()]), strict=True):
            got[s].append(rows)
    return [torch.cat(rows) for rows in got]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("options", [{}, GEMMA | {"tied": False}], ids=["llama", "gemma"])
def test_batches_chunks_and_steps_agree(kind: str, options: dict[str, object]) -> None:
    model = random_model(spec(kind, **options), seed=3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    texts = [torch.randint(0, 97, (n,), generator=generator) for n in (23, 1, 14)]
    alone = [run(model, [text], chunk=64)[0] for text in texts]
    assert alone[0].dtype == torch.float64
    assert 1.0 < alone[0].std() < 10.0
    for chunk in (1, 7):
        for rows, wanted in zip(run(model, texts, chunk), alone, strict=True):
            torch.testing.assert_close(rows, wanted, atol=1e-9, rtol=0)


def test_state_layer_is_decayed_linear_attention() -> None:
    model = random_model(spec("state"), dtype=torch.float64)
    mixer, cache = model.decoder.layers[0].mixer, DenseCache(model.spec)
    x = torch.randn(9, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    cache.plan([0] * 9, torch.arange(9))
    q, k, v = (part(x).view(9, 2, -1).transpose(0, 1) for part in (mixer.q, mixer.k, mixer.v))
    fade = torch.sigmoid(mixer.gate(x)).log().cumsum(0).T
    scores = (q @ k.mT) * 8**-0.5 * torch.exp(fade[:, :, None] - fade[:, None, :])
    wanted = mixer.o((scores.tril() @ v).transpose(0, 1).reshape(9, -1))
    # The stored state is float32.
    torch.testing.assert_close(mixer(x, cache), wanted, atol=1e-5, rtol=0)


def test_only_asked_rows_get_logits() -> None:
    model, tokens = random_model(SPEC), torch.arange(8)
    every = run(model, [tokens], chunk=8)[0]
    for rows in ([7], [2, 0], []):
        cache = DenseCache(SPEC)
        cache.plan([0] * 8, tokens)
        chosen = torch.tensor(rows, dtype=torch.int64)
        got = model.forward(tokens, tokens, cache, rows=chosen)
        torch.testing.assert_close(got, every[chosen])


def test_final_softcap_bounds_logits() -> None:
    plain = run(random_model(SPEC), [torch.arange(8)], chunk=8)[0]
    capped = run(random_model(replace(SPEC, final_softcap=2.0)), [torch.arange(8)], chunk=8)[0]
    torch.testing.assert_close(capped, 2.0 * torch.tanh(plain / 2.0))


@pytest.mark.parametrize(
    ("tokens", "positions", "rows", "says"),
    [
        ([], [], None, "at least one token"),
        ([[1, 2]], [[0, 1]], None, "at least one token"),
        ([1.0], [0], None, "int64"),
        ([1, 97], [0, 1], None, "97 is outside the vocabulary of 97"),
        ([1, -1], [0, 1], None, "-1 is outside"),
        ([1, 2], [0], None, "2 tokens come with 1 positions"),
        ([1, 2], [0, 1], [2], "rows 2 to 2 of a step of 2 tokens"),
    ],
)
def test_bad_steps_are_refused(tokens: list, positions: list, rows: list | None, says: str) -> None:
    model = random_model(SPEC)
    chosen = None if rows is None else torch.tensor(rows)
    with pytest.raises(KvikError, match=says):
        model.forward(torch.tensor(tokens), torch.tensor(positions), DenseCache(SPEC), chosen)


def named_weights(spec: ModelSpec) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}

    def take(name: str, shape: tuple[int, ...]) -> Tensor:
        return weights.setdefault(name, torch.zeros(shape))

    Decoder.build(take, spec)
    return weights


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"norm.weight": None}, "no tensor 'norm.weight'"),
        ({"norm.weight": torch.zeros(49)}, r"\[49\].*\[48\]"),
        ({"norm.weight": torch.zeros(48).half()}, "convert it to float32"),
        ({"norm.weight": torch.zeros(48).double()}, "share one dtype"),
        ({"layers.0.q_proj.bias": torch.zeros(64)}, "does not account for: layers.0.q_proj.bias"),
    ],
)
def test_weights_that_do_not_fit_are_refused(change: dict[str, Tensor | None], says: str) -> None:
    weights = named_weights(SPEC) | change
    with pytest.raises(ModelError, match=says):
        Decoder.from_weights(SPEC, {k: v for k, v in weights.items() if v is not None})


def test_weights_may_want_gradients_and_logits_have_none() -> None:
    weights = {name: torch.nn.Parameter(x) for name, x in named_weights(SPEC).items()}
    decoder = Decoder.from_weights(SPEC, weights)
    assert decoder.embed.data_ptr() == weights["embed.weight"].data_ptr()
    cache = DenseCache(SPEC)
    cache.plan([0], torch.arange(1))
    assert not decoder.forward([3], [0], cache).requires_grad


def test_random_models_repeat_and_have_no_tokenizer() -> None:
    one, two = random_model(SPEC, seed=4), random_model(SPEC, seed=4)
    assert torch.equal(one.decoder.embed, two.decoder.embed)
    assert not torch.equal(one.decoder.embed, random_model(SPEC, seed=5).decoder.embed)
    assert one.eos_ids == frozenset()
    assert one.chat_template is None
    with pytest.raises(ModelError, match="no tokenizer"):
        _ = one.tokenizer


def test_the_package_alone_does_not_import_torch() -> None:
    code = "import sys, kvik.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
