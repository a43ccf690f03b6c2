"""Mistral, Qwen, Gemma 2, Phi-3, SmolLM3 and mixtures: transformers' logits and greedy texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvik.engine.session import Session
from kvik.models.feed_forward import Mixture
from kvik.models.model import Model

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
            # The longest of the texts is longer than the old context, the others are not.
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
CASES = [(family, case) for family, (_, cases) in FAMILIES.items() for case in cases]


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
    assert chosen == wanted.argmax(-1).tolist()
    assert len(set(chosen)) > 3, "a text that says nothing"
