"""Parameter counts against the models that transformers builds from the same configurations."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, WhisperForConditionalGeneration

from kvik.spec.anatomy import ANATOMIES
from kvik.spec.families import FAMILIES
from kvik.spec.hf_config import plan_from_config
from kvik.spec.presets import preset_spec, presets

# One of each kind; the slow test takes every preset that transformers can build.
SOME = [
    "Qwen2.5-0.5B", "Qwen3-0.6B", "Gemma-3n-E4B", "Gemma-4-E4B", "Falcon-40B", "GPT-2",
    "Phi-4-mini", "gpt-oss-20b", "DeepSeek-V2-Lite", "Llama-4-Scout", "Granite-4.0-H-Small",
    "LFM2-1.2B", "Qwen3.5-35B-A3B",
]  # fmt: skip
# Names that transformers has under another model type, or only with a tower for images, and
# Kimi-K3, whose experts work on a narrower latent that transformers does not build.
ELSEWHERE = {
    "Mistral-Small-4", "Step-3.7-Flash", "Qwen3-VL-8B", "Qwen3-VL-30B-A3B", "Qwen3-VL-235B-A22B",
    "DBRX", "Kimi-K3",
}  # fmt: skip
KNOWN_THERE = {"kimi_k2": "deepseek_v3"}
# transformers builds these on the meta device from defaults alone.
DEFAULTS = [
    "arcee", "codegen", "ernie4_5", "exaone4", "flex_olmo", "glm", "gpt_neox", "granite",
    "granitemoe", "granitemoeshared", "helium", "internlm3", "mamba", "minimax", "ministral3",
    "olmoe", "qwen2_moe", "seed_oss", "solar_open", "stablelm",
]  # fmt: skip


def built(config: Any, whisper: bool = False) -> tuple[int, bool]:
    """Distinct parameters of the model, and whether its output matrix is the embedding."""
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        if whisper:
            model = WhisperForConditionalGeneration._from_config(config)
        else:
            model = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    total = sum({id(p): p.numel() for p in model.parameters()}.values())
    return total, model.get_output_embeddings().weight is model.get_input_embeddings().weight


def assert_counts(name: str) -> None:
    values = dict(presets()[name]["config"])
    kind = KNOWN_THERE.get(values["model_type"], values["model_type"])
    config = AutoConfig.for_model(kind, **{k: v for k, v in values.items() if k != "model_type"})
    spec = preset_spec(name)
    assert spec.params is not None
    assert (spec.params.total, spec.tied) == built(config, kind == "whisper")


@pytest.mark.parametrize("name", SOME)
def test_presets_have_exactly_the_parameters_of_transformers(name: str):
    assert_counts(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(presets()) - set(SOME) - ELSEWHERE))
def test_all_presets_have_the_parameters_of_transformers(name: str):
    try:
        AutoConfig.for_model(presets()[name]["config"]["model_type"])
    except ValueError:
        pytest.skip("transformers does not know this model type")
    assert_counts(name)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DEFAULTS)
def test_families_without_presets_too(kind: str):
    config = AutoConfig.for_model(kind)
    spec = plan_from_config(config.to_dict(), kind, kind)
    assert spec.params is not None
    assert (spec.params.total, spec.tied) == built(config)


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [  # billions, as published
        ("Llama-3.1-8B", 8.03, 8.03),
        ("Mixtral-8x7B", 46.7, 12.9),
        ("Qwen3-235B-A22B", 235, 22),
        ("DeepSeek-V3", 671, 37),
        ("DBRX", 132, 36),
        ("MiniMax-01", 456, 48),  # 45.9 and the two matrices of the vocabulary
        ("Mistral-Small-4", 119, 6.6),
        ("Step-3.7-Flash", 196, 11),
        ("GLM-4-9B", 9.4, 9.4),
        ("PaLM-540B", 540, 540),
        ("Llama-3.3-Nemotron-Super-49B", 50, 50),
        ("Kimi-K2", 1026, 33),
    ],
)
def test_published_totals(name: str, total: float, active: float):
    params = preset_spec(name).params
    assert params is not None
    assert params.total / 1e9 == pytest.approx(total, rel=0.01, abs=0.06)
    assert params.active / 1e9 == pytest.approx(active, rel=0.05, abs=0.06)


def test_a_batch_reads_more_experts():
    params = preset_spec("Qwen3-30B-A3B").params
    assert params is not None
    assert params.used(1) == params.active
    assert params.active < params.used(8) < params.used(64) < params.total
    # 128 experts, 8 a token: two tokens miss an expert with (1 - 1/16) ** 2.
    assert params.used(2) == params.total - params.routed * (15 / 16) ** 2


def test_dense_models_read_everything():
    params = preset_spec("Llama-3.1-8B").params
    assert params is not None
    assert params.used(1) == params.used(100) == params.total
    assert (params.output, params.embedding) == (128_256 * 4096, 128_256 * 4096)
    tied = preset_spec("Llama-3.2-1B").params
    assert tied is not None
    assert tied.output == 0


def test_what_is_not_known_is_not_counted():
    assert set(ANATOMIES) <= set(FAMILIES)
    values = AutoConfig.for_model("apertus").to_dict()
    spec = plan_from_config(values, "apertus", "apertus")
    assert spec.layers
    assert spec.params is None
