"""Our logits are transformers', on tiny random models of each family and on the real ones."""

from __future__ import annotations

import dataclasses
import pydoc_data.topics
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kvik.models.decoder import Decoder
from kvik.models.model import Model
from kvik.spec import load_spec

from .dense_cache import DenseCache

transformers = pytest.importorskip("transformers")

TINY = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMAS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "multi-head": {"num_key_value_heads": 4},
    "multi-query, tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "head dim": {"head_dim": 24},
    "rope llama3": {"rope_parameters": LLAMA3},
    "rope linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "bias": {"attention_bias": True},
}
GEMMAS: dict[str, dict[str, Any]] = {
    "multi-query": {"num_key_value_heads": 1},
    "softcap, scalar": {"final_logit_softcapping": 3.0, "query_pre_attn_scalar": 40},
    "long context": {
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        }
    },
}


def tiny(family: str, options: dict[str, Any]) -> Any:
    torch.manual_seed(7)
    if family == "llama":
        config = transformers.LlamaConfig(**TINY | {"tie_word_embeddings": False} | options)
        model = transformers.LlamaForCausalLM(config)
    else:
        gemma = {"head_dim": 16, "sliding_window": 5, "sliding_window_pattern": 3}
        config = transformers.Gemma3TextConfig(**TINY | gemma | options)
        model = transformers.Gemma3ForCausalLM(config)
    for name, parameter in model.named_parameters():
        spread = 0.1 if "norm" in name or "bias" in name else 0.15
        torch.nn.init.normal_(
            parameter, std=spread, mean=float("norm" in name and family == "llama")
        )
    return model.eval()


def ours(theirs: Any, folder: Path) -> Model:
    from kvik.models.weights import load_weights

    theirs.save_pretrained(folder)
    spec = load_spec(folder)
    return Model(spec.name, spec, Decoder.from_weights(spec, load_weights(folder, spec)), folder)


@torch.no_grad()
def reference(theirs: Any, tokens: Tensor) -> Tensor:
    return theirs(tokens[None]).logits[0]


def feed(model: Model, cache: DenseCache, parts: dict[int, Tensor], past: dict[int, int]) -> Tensor:
    """One step of a ragged batch: the next tokens of each sequence."""
    positions = torch.cat([past.get(s, 0) + torch.arange(len(t)) for s, t in parts.items()])
    cache.plan([s for s, t in parts.items() for _ in t], positions)
    logits = model.forward(torch.cat(list(parts.values())), positions, cache)
    cache.commit()
    past.update({s: past.get(s, 0) + len(t) for s, t in parts.items()})
    return logits


CASES = [("llama", key) for key in LLAMAS] + [("gemma3", key) for key in GEMMAS]


@pytest.mark.parametrize(("family", "case"), CASES)
def test_tiny_models_agree_with_transformers(family: str, case: str, tmp_path: Path) -> None:
    theirs = tiny(family, (LLAMAS if family == "llama" else GEMMAS)[case])
    model = ours(theirs, tmp_path)
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(0, 131, (n,), generator=generator) for n in (40, 9, 23)]
    expected = [reference(theirs, text) for text in texts]
    assert expected[0].std() > 0.3

    # A ragged prefill, single steps of all three, then a chunk of one beside steps of another.
    cache, past, got = DenseCache(model.spec), {}, [[], [], []]
    cuts = [{0: 11, 1: 4, 2: 1}, *[{0: 1, 1: 1, 2: 1}] * 5, {2: 17, 0: 1}, {0: 23}]
    for cut in cuts:
        parts = {s: texts[s][past.get(s, 0) :][:n] for s, n in cut.items()}
        for s, rows in zip(
            parts, feed(model, cache, parts, past).split(list(cut.values())), strict=True
        ):
            got[s].append(rows)
    for rows, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(torch.cat(rows), wanted, atol=1e-4, rtol=0)
