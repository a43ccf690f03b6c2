"""Mistral, Qwen, Gemma 2, Phi-3, SmolLM3 and mixtures: transformers' logits and greedy texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kvik import native
from kvik.engine.session import Session
from kvik.errors import SpecError
from kvik.models.feed_forward import FeedForward, Mixture
from kvik.models.model import Model, load_model
from kvik.models.packed_layer import PackedLayer
from kvik.ops.native_linear import Packed
from kvik.testing.choices import clear_choices

from .family_gguf import write_gguf
from .test_parity import TINY, assert_parity, filled, ours, reference

transformers = pytest.importorskip("transformers")

# LongRoPE's factors for heads of 16 channels.
LONG, SHORT = [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 7.0, 9.0], [1.0, 1.0, 1.0, 1.1, 1.2, 1.2, 1.3, 1.5]
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "long_factor": LONG,
    "short_factor": SHORT,
}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3}

# Family: the names of transformers' classes, then cases by what they change.
FAMILIES: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "mistral": (
        "Mistral",
        {"window": {"sliding_window": 7}, "head dim": {"head_dim": 24, "sliding_window": None}},
    ),
    "qwen2": (
        "Qwen2",
        {
            "biases": {},
            "window from layer 1 on": {
                "use_sliding_window": True,
                "sliding_window": 6,
                "max_window_layers": 1,
                "tie_word_embeddings": True,
            },
        },
    ),
    "qwen3": (
        "Qwen3",
        {
            "norms": {"head_dim": 16},
            "more": {
                "head_dim": 32,
                "attention_bias": True,
                "use_sliding_window": True,
                "sliding_window": 6,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
        },
    ),
    "gemma2": (
        "Gemma2",
        {
            "softcaps": {
                "head_dim": 16,
                "sliding_window": 5,
                "attn_logit_softcapping": 2.0,
                "final_logit_softcapping": 3.0,
            },
            "scalar, no caps": {
                "head_dim": 24,
                "sliding_window": 9,
                "query_pre_attn_scalar": 40,
                "attn_logit_softcapping": None,
                "final_logit_softcapping": None,
                "attention_bias": True,
            },
        },
    ),
    "phi3": (
        "Phi3",
        {
            "window": {"sliding_window": 7},
            "partial": {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        },
    ),
    "smollm3": (
        "SmolLM3",
        {
            "every third without": {"no_rope_layer_interval": 3},
            "listed, window": {
                "no_rope_layers": [0, 1, 0],
                "use_sliding_window": True,
                "sliding_window": 6,
                "attention_bias": True,
            },
        },
    ),
    "mixtral": (
        "Mixtral",
        {
            "two of four": {"num_local_experts": 4},
            "window": {"num_local_experts": 3, "sliding_window": 6, "head_dim": 24},
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "normed": EXPERTS | {"norm_topk_prob": True, "head_dim": 16},
            "not normed, dense layers": EXPERTS
            | {"norm_topk_prob": False, "head_dim": 16, "mlp_only_layers": [2]},
            "every second layer": EXPERTS | {"decoder_sparse_step": 2, "head_dim": 16},
        },
    ),
}
# What llama.cpp's format has no key for.
UNWRITABLE = {"window from layer 1 on", "more", "scalar, no caps", "every third without",
              "listed, window", "not normed, dense layers", "every second layer"}  # fmt: skip
CASES = [(family, case) for family, (_, cases) in FAMILIES.items() for case in cases]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """More threads of torch wait for each other on products of this size."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny(family: str, case: str = "", **changes: Any) -> Any:
    """transformers' model of a case (the first unless said), with changes."""
    torch.manual_seed(7)
    name, cases = FAMILIES[family]
    options = cases[case or next(iter(cases))]
    # Its default would be outside so small a vocabulary.
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, f"{name}Config")(**TINY | ids | options | changes)
    # Only eager attention knows softcaps.
    model = getattr(transformers, f"{name}ForCausalLM")._from_config(
        config, attn_implementation="eager"
    )
    return filled(model, gemma=family == "gemma2")


@pytest.mark.parametrize(("family", "case"), CASES)
def test_tiny_models_agree_with_transformers(family: str, case: str, tmp_path: Path) -> None:
    theirs = tiny(family, case)
    assert_parity(theirs, ours(theirs, tmp_path))


def greedy(model: Model, prompt: list[int], count: int) -> tuple[torch.Tensor, list[int]]:
    """Logits of the prompt's last token and of each that followed, and those that were chosen."""
    session, step, rows, chosen = Session(model, "fp32", max_tokens=128), prompt, [], []
    for _ in range(count):
        rows.append(session.feed(step, logits="last").reshape(-1))
        step = [int(rows[-1].argmax())]
        chosen += step
    return torch.stack(rows), chosen


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_texts_are_transformers(family: str, tmp_path: Path) -> None:
    theirs = tiny(family)
    model = ours(theirs, tmp_path)
    prompt = torch.randint(3, 131, (12,), generator=torch.Generator().manual_seed(4)).tolist()
    rows, chosen = greedy(model, prompt, 64)
    text = torch.tensor(prompt + chosen)
    wanted = reference(theirs, text)[len(prompt) - 1 : -1]
    torch.testing.assert_close(rows, wanted, atol=1e-4, rtol=0)
    clear = clear_choices(wanted, float((rows - wanted).abs().max()))
    assert clear.float().mean() > 0.95
    assert torch.equal(torch.tensor(chosen)[clear], wanted.argmax(-1)[clear])
    assert len(set(chosen)) > 1, "a text that says nothing"


TEXT = torch.randint(0, 131, (40,), generator=torch.Generator().manual_seed(8))
NATIVE = pytest.mark.skipif(
    native.library() is None, reason="kvik is installed without the native library"
)


def fed(model: Model, chunk: int = 64) -> torch.Tensor:
    """Logits of the text through kvik's own cache."""
    return Session(model, "fp32", max_tokens=64).feed(TEXT.tolist(), logits="all", chunk=chunk)


def gguf_case(family: str, case: str) -> dict[str, Any]:
    # Its one key stands for every fourth layer; of the scale there is none, but the head's own.
    layers = {"num_hidden_layers": 5} if family == "smollm3" else {}
    return layers | ({"query_pre_attn_scalar": 16} if family == "gemma2" else {})


WRITABLE = [(f, c) for f, c in CASES if c not in UNWRITABLE] + [("smollm3", "")]


@pytest.mark.parametrize(("family", "case"), WRITABLE)
def test_gguf_files_give_the_same_logits(family: str, case: str, tmp_path: Path) -> None:
    changes = gguf_case(family, case)
    if family == "smollm3":
        changes["no_rope_layer_interval"] = 4
    theirs = tiny(family, case, **changes)
    path, wanted = write_gguf(theirs, tmp_path / "model"), reference(theirs, TEXT)
    dense = load_model(path, dense=True)
    torch.testing.assert_close(fed(dense), wanted, atol=1e-4, rtol=0)
    torch.testing.assert_close(fed(dense, chunk=7), wanted, atol=1e-4, rtol=0)
    # The folder beside it describes the same layers.
    folder = load_model(tmp_path / "model", dense=True)
    assert dense.spec.layers == folder.spec.layers
    assert dense.spec.experts == folder.spec.experts


@NATIVE
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_weights_agree_with_dense_ones(family: str, tmp_path: Path) -> None:
    theirs = tiny(family, **gguf_case(family, ""))
    path = write_gguf(theirs, tmp_path / "model", "Q8_0")
    fast, exact = load_model(path), load_model(path, dense=True)
    assert exact.decoder.dtype == torch.float32
    wanted = fed(exact)
    assert (fed(fast) - wanted).abs().max() < 5e-3 * wanted.abs().max()
    torch.testing.assert_close(fed(fast, chunk=7), fed(fast), atol=1e-5, rtol=0)
    for index, layer in enumerate(fast.decoder.layers):
        mixed = fast.spec.has_experts(index)
        assert isinstance(layer, PackedLayer) != mixed
        if mixed:
            assert isinstance(layer.ffn, Mixture)
            for expert in layer.ffn.experts:
                assert isinstance(expert, FeedForward)
                for part in (expert.gate, expert.up, expert.down):
                    assert isinstance(part.weight, Packed)
                    assert part.weight.type == "Q8_0"
    torch.testing.assert_close(
        fed(load_model(tmp_path / "model")), reference(theirs, TEXT), atol=1e-3, rtol=0
    )


def test_longrope_is_settled_when_a_model_is_loaded(tmp_path: Path) -> None:
    theirs = tiny(
        "phi3",
        sliding_window=None,
        original_max_position_embeddings=32,
        rope_parameters=dict(LONGROPE),
    )
    path = write_gguf(theirs, tmp_path / "model")
    # transformers takes the long factors where the text is longer than 32 tokens, else the short.
    wanted, short = reference(theirs, TEXT), reference(theirs, TEXT[:32])
    assert (wanted[:32] - short).abs().max() > 0.05
    for source in (path, tmp_path / "model"):
        torch.testing.assert_close(fed(load_model(source, dense=True)), wanted, atol=1e-4, rtol=0)
        model = load_model(source, dense=True, context=32)
        assert model.spec.context == 32
        rows = Session(model, "fp32", max_tokens=64).feed(TEXT[:32].tolist(), logits="all")
        torch.testing.assert_close(rows, short, atol=1e-4, rtol=0)
        assert model.identity != load_model(source, dense=True).identity


def test_a_context_changes_nothing_else(tmp_path: Path) -> None:
    tiny("mistral").save_pretrained(tmp_path)
    whole, part = load_model(tmp_path), load_model(tmp_path, context=32)
    assert (part.spec, part.identity) == (whole.spec, whole.identity)


KINDS = ["sliding_attention", "full_attention", "sliding_attention"]


@pytest.mark.parametrize("family", ["mistral", "mixtral", "phi3"])
def test_a_list_that_transformers_ignores_changes_nothing(family: str, tmp_path: Path) -> None:
    window = {"sliding_window": 7}
    alone, mixed = tiny(family, **window), tiny(family, **window, layer_types=KINDS)
    torch.testing.assert_close(reference(mixed, TEXT), reference(alone, TEXT))
    with pytest.raises(SpecError, match="layer_types must be sliding_attention for every layer"):
        ours(mixed, tmp_path / "mixed")
    alike = tiny(family, **window, layer_types=["sliding_attention"] * 3)
    assert_parity(alike, ours(alike, tmp_path / "alike"))
