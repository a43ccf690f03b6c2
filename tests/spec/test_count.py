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
    stored = ("model_type", "quantization_config", "torch_dtype", "expert_dtype")
    config = AutoConfig.for_model(kind, **{k: v for k, v in values.items() if k not in stored})
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
    [  # billions, as published; of a table of embeddings a token reads one row
        ("Llama-3.1-8B", 8.03, 8.03 - 0.525),
        ("Mixtral-8x7B", 46.7, 12.9),
        ("Qwen3-235B-A22B", 235, 22),
        ("DeepSeek-V3", 671, 37),
        ("DeepSeek-V2-Lite", 15.7, 2.4),
        ("DBRX", 132, 36),
        ("gpt-oss-20b", 20.9, 3.6),
        ("gpt-oss-120b", 116.8, 5.1),
        ("MiniMax-01", 456, 45.9),
        ("GLM-4.5-Air", 106.9, 12 + 0.62),  # published without the output matrix
        ("Mistral-Small-4", 119, 6),
        ("Step-3.7-Flash", 196, 11 - 0.53),  # published with the table
        ("GLM-4-9B", 9.4, 9.4 - 0.62),
        ("Gemma-3n-E4B", 6.9, 4.5),  # per-layer embeddings are looked up too
        ("PaLM-540B", 540, 540),
        ("Llama-3.3-Nemotron-Super-49B", 50, 50 - 1.05),
        ("Kimi-K2", 1026, 32),
    ],
)
def test_published_totals(name: str, total: float, active: float):
    params = preset_spec(name).params
    assert params is not None
    assert params.total / 1e9 == pytest.approx(total, rel=0.01, abs=0.06)
    assert params.active / 1e9 == pytest.approx(active, rel=0.05, abs=0.06)


def test_longcat_flash_has_what_was_published():
    """560 billion; of 768 experts 256 have no weights, so 27 are active on average."""
    values = AutoConfig.for_model("longcat_flash").to_dict()
    params = plan_from_config(values, "longcat", "longcat").params
    assert params is not None
    assert params.total / 1e9 == pytest.approx(560, rel=0.002)
    assert params.active / 1e9 == pytest.approx(27, rel=0.01)


def test_sizes_may_be_listed_layer_by_layer():
    """Gemma 3n lists feed-forward widths, Hunyuan the experts of a token."""
    values = dict(presets()["Gemma-3n-E4B"]["config"])
    spec = plan_from_config(values | {"intermediate_size": [16_384] * 35}, "x", "x")
    assert spec.params == plan_from_config(values | {"intermediate_size": 16_384}, "x", "x").params
    assert (spec.ffn, spec.params is None) == (16_384, False)
    wide = plan_from_config(values | {"intermediate_size": [16_384] * 34 + [8192]}, "x", "x")
    assert wide.params is not None
    assert spec.params is not None
    assert spec.params.total - wide.params.total == 3 * wide.hidden * 8192
    values = dict(presets()["Hunyuan-Large"]["config"])
    topk = values["moe_topk"]
    listed = {"moe_topk": [topk] * 64, "moe_intermediate_size": [values["intermediate_size"]] * 64}
    spec = plan_from_config(values | listed, "x", "x")
    assert spec.params == preset_spec("Hunyuan-Large").params
    mixed = plan_from_config(values | {"moe_topk": [topk] * 63 + [topk + 1]}, "x", "x")
    assert mixed.params is None, "what differs between layers is not guessed"


def test_a_batch_reads_more_experts():
    params = preset_spec("Qwen3-30B-A3B").params
    assert params is not None
    assert params.used(1) == params.active
    assert params.active < params.used(8) < params.used(64) < params.total
    # 128 experts, 8 a token: two tokens miss an expert with (1 - 1/16) ** 2.
    read = params.total - params.embedding  # a table of which one row is read
    assert params.used(2) == read - params.routed * (15 / 16) ** 2


def test_dense_models_read_everything():
    params = preset_spec("Llama-3.1-8B").params
    assert params is not None
    table = 128_256 * 4096
    assert params.used(1) == params.used(100) == params.active == params.total - table
    assert (params.output, params.embedding) == (table, table)
    tied = preset_spec("Llama-3.2-1B").params
    assert tied is not None
    assert tied.output == 0
    assert tied.active == tied.total, "the output matrix is the table: all of it is read"
    gpt2 = preset_spec("GPT-2").params
    assert gpt2 is not None
    assert gpt2.total - gpt2.active == 1024 * 768, "one row of the learned positions"


def test_what_is_not_known_is_not_counted():
    assert set(ANATOMIES) <= set(FAMILIES)
    values = AutoConfig.for_model("apertus").to_dict()
    spec = plan_from_config(values, "apertus", "apertus")
    assert spec.layers
    assert spec.params is None
