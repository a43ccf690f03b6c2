"""config.json for planning: rules of the families, named refusals, and hostile input."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, DynamicCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from kvik.errors import SpecError
from kvik.spec import ModelSpec, load_spec
from kvik.spec.families import FAMILIES
from kvik.spec.hf_config import plan_from_config
from kvik.spec.presets import preset_spec, presets

BASE: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}
MLA = {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}


def plan(**changes: Any) -> ModelSpec:
    """The spec of ``BASE`` with changes; a value of ``...`` leaves the field out."""
    values = {k: v for k, v in (BASE | changes).items() if v is not ...}
    return plan_from_config(values, "config.json", "tiny")


def kinds(spec: ModelSpec) -> str:
    """First letters of the kinds of its layers."""
    return "".join(layer.kind[0] for layer in spec.layers)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "ffffffff"),
        # Qwen: only with the flag, and only from max_window_layers on.
        ({"sliding_window": 64}, "ffffffff"),
        (
            {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 6},
            "ffffffss",
        ),
        # Mistral: null is off, absent is 4,096, a window as wide as the context is none.
        ({"model_type": "mistral", "sliding_window": None}, "ffffffff"),
        ({"model_type": "mistral", "max_position_embeddings": 32_768}, "ssssssss"),
        ({"model_type": "mistral", "sliding_window": 4096}, "ffffffff"),
        ({"model_type": "gemma2", "sliding_window": 64}, "sfsfsfsf"),
        ({"model_type": "cohere2", "sliding_window": 64}, "sssfsssf"),
        ({"model_type": "cohere2", "sliding_window": 64, "sliding_window_pattern": 2}, "sfsfsfsf"),
        (
            {"model_type": "exaone4", "sliding_window": 64, "sliding_window_pattern": "LLG"},
            "ssfssfsf",
        ),
        ({"model_type": "exaone4"}, "ffffffff"),
        ({"model_type": "llama4_text", "attention_chunk_size": 64}, "cccfcccf"),
        (
            {"model_type": "llama4_text", "attention_chunk_size": 64, "no_rope_layers": [1, 0] * 4},
            "cfcfcfcf",
        ),
        (
            {"model_type": "gpt_oss", "sliding_window": 64,
             "layer_types": ["full_attention"] * 6 + ["sliding_attention"] * 2},
            "ffffffss",
        ),
        ({"model_type": "gemma3n", "sliding_window": 9, "num_kv_shared_layers": 2}, "ssssfsSS"),
    ],
)  # fmt: skip
def test_which_layers_slide(changes: dict[str, Any], expected: str):
    spec = plan(**changes)
    shared = ["S" if layer.kind == "shared" else layer.kind[0] for layer in spec.layers]
    assert "".join(shared) == expected


@pytest.mark.parametrize(
    ("changes", "kv", "k", "v"),
    [
        ({}, 2, 16, 16),
        ({"num_key_value_heads": None}, 4, 16, 16),
        ({"head_dim": 40}, 2, 40, 40),
        ({"head_dim": None, "kv_channels": 24}, 2, 24, 24),
        ({"model_type": "falcon", "num_key_value_heads": ...}, 1, 16, 16),
        ({"model_type": "falcon", "multi_query": False, "num_key_value_heads": ...}, 4, 16, 16),
        ({"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2}, 2, 16, 16),
        ({"model_type": "gpt_bigcode", "multi_query": True}, 1, 16, 16),
        (
            {"model_type": "chatglm", "multi_query_attention": True, "multi_query_group_num": 2},
            2, 16, 16,
        ),
        ({"model_type": "chatglm", "multi_query_group_num": 2}, 4, 16, 16),
        ({"model_type": "mpt", "attn_config": {"kv_n_heads": 1}}, 1, 16, 16),
        ({"model_type": "minicpm3", **MLA, "v_head_dim": None}, 1, 40, 32),
        ({"model_type": "deepseek_v3", **MLA}, 1, 40, 32),
    ],
)  # fmt: skip
def test_heads_and_dimensions(changes: dict[str, Any], kv: int, k: int, v: int):
    layer = plan(**changes).layers[-1]
    assert (layer.kv_heads, layer.k_dim, layer.v_dim) == (kv, k, v)


@pytest.mark.parametrize(
    "nest", ["text_config", "llm_config", "language_config", "decoder", "transf_decoder"]
)
def test_the_text_model_of_a_larger_one(nest: str):
    outer = {"model_type": "some_vl", "hidden_size": 7, "tie_word_embeddings": True, nest: BASE}
    spec = plan_from_config(outer, "config.json", "tiny")
    assert (spec.hidden, spec.family, spec.tied) == (64, "qwen3", True)


LONGCAT = MLA | {"model_type": "longcat_flash", "num_hidden_layers": ..., "num_layers": 28}


@pytest.mark.parametrize("more", [{}, {"num_hidden_layers": 28}, {"num_hidden_layers": 56}])
def test_a_layer_of_longcat_flash_has_two_caches(more: dict[str, int]):
    spec = plan(**LONGCAT | {"kv_lora_rank": 512, "qk_rope_head_dim": 64} | more)
    assert sum(2 * layer.row_values for layer in spec.layers) == 64_512
    with pytest.raises(SpecError, match="num_layers is missing"):
        plan(**LONGCAT | {"num_layers": ..., "num_hidden_layers": 28})


def test_layers_that_look_at_an_image_keep_no_text():
    """Llama 3.2 Vision: 8 of 40 layers."""
    changes: dict[str, Any] = {
        "model_type": "mllama_text_model", "num_hidden_layers": 40, "hidden_size": 4096,
        "num_attention_heads": 32, "num_key_value_heads": 8,
    }  # fmt: skip
    crossing = [3, 8, 13, 18, 23, 28, 33, 38]
    assert sum(2 * y.row_values for y in plan(**changes).layers) == 163_840
    spec = plan(**changes, cross_attention_layers=crossing)
    assert sum(2 * y.row_values for y in spec.layers) == 131_072
    assert [i for i, y in enumerate(spec.layers) if not y.caches_tokens] == crossing
    with pytest.raises(SpecError, match="cross_attention_layers must be"):
        plan(**changes, cross_attention_layers=[40])


def test_a_text_model_without_a_type_takes_its_parents():
    inner = {k: v for k, v in BASE.items() if k != "model_type"}
    outer = {"model_type": "qwen3", "thinker_config": {"text_config": inner}}
    assert plan_from_config(outer, "config.json", "tiny").family == "qwen3"


def test_levels_are_never_mixed():
    inner = {k: v for k, v in BASE.items() if k != "num_attention_heads"}
    with pytest.raises(SpecError, match=r"text_config\.num_attention_heads is missing"):
        plan_from_config(BASE | {"text_config": inner}, "config.json", "tiny")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": ...}, "model_type is missing"),
        ({"model_type": "qwen9"}, "'qwen9', whose cache is not known here; known are .*qwen"),
        ({"model_type": "zzzz"}, "docs/models.md"),
        ({"model_type": 3}, "model_type must be a string"),
        ({"num_hidden_layers": ...}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be a whole number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be a whole number"),
        ({"num_attention_heads": 10**400}, "num_attention_heads must be"),
        ({"num_attention_heads": True}, "num_attention_heads must be"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 KV heads"),
        ({"hidden_size": float("nan")}, "hidden_size must be"),
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"num_attention_heads": 128}, "128 attention heads cannot share a width of 64"),
        ({"vocab_size": ...}, "vocab_size is missing"),
        ({"head_dim": 0}, "head_dim must be"),
        ({"head_dim": 1 << 20}, "head_dim must be"),
        ({"model_type": "llama", "sliding_window": 64}, "sliding_window must be absent"),
        ({"model_type": "gpt_oss"}, "sliding_window is missing"),
        ({"model_type": "gpt_oss", "layer_types": ["full_attention"]}, "lists 1, not 8"),
        ({"model_type": "gpt_oss", "layer_types": ["slidin"] * 8}, "layer_types must be"),
        ({"model_type": "gpt_oss", "layer_types": [[]] * 8}, "layer_types must be"),
        ({"model_type": "gpt_oss", "layer_types": ["mamba"] * 8}, "recurrent"),
        ({"model_type": "deepseek_v3"}, "kv_lora_rank is missing"),
        ({"model_type": "deepseek_v32", **MLA}, "index_head_dim is missing"),
        (
            {"model_type": "glm_moe_dsa", **MLA, "index_head_dim": 8, "indexer_types": ["full"]},
            "indexer_types must be",
        ),
        ({"model_type": "jamba"}, "attn_layer_period is missing"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*"}, "must be 8 letters"),
        ({"model_type": "kimi_linear", **MLA}, r"linear_attn_config\.full_attn_layers is missing"),
        (
            {"model_type": "kimi_linear", **MLA, "linear_attn_config": {"full_attn_layers": [9]}},
            "full_attn_layers must be a list of whole numbers from 1 to 8",
        ),
        ({"model_type": "qwen3_next"}, "linear_num_key_heads is missing"),
        ({"model_type": "minimax_m3"}, "sparse_attention_config is missing"),
        ({"model_type": "nemotron-nas"}, r"block_configs\[0\]"),
        ({"model_type": "deepseek_v4", "qk_rope_head_dim": 8, "head_dim": 16}, "compress_ratios"),
        ({"model_type": "mimo_v2_flash"}, "hybrid_layer_pattern must be a list"),
        ({"model_type": "gemma4_text", "sliding_window": 8, "num_kv_shared_layers": 8}, "shared"),
        ({"model_type": "hunyuan", "use_cla": True}, "cla_share_factor is missing"),
        ({"text_config": {"text_config": {"model_type": "x"}}}, "'x', whose cache"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], said: str):
    with pytest.raises(SpecError, match=said) as error:
        plan(**changes)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_what_only_the_count_needs_may_be_missing():
    spec = plan(model_type="qwen3_moe", num_experts=8)
    assert spec.params is None
    assert kinds(spec) == "f" * 8


# What transformers calls the layers of its own cache.
THEIRS = {
    "DynamicLayer": {"full", "latent"},
    "DynamicSlidingWindowLayer": {"sliding", "chunked"},
    "LinearAttentionLayer": {"state"},
    "LinearAttentionAndFullAttentionLayer": {"full"},
}
# transformers keeps every token of Jamba-like and encoder models in layers of other classes.
COMPARED = [
    "Llama-3.1-8B", "Mistral-7B-v0.1", "Mistral-7B-v0.3", "Gemma-2-9B", "Gemma-3-4B", "gpt-oss-20b",
    "Gemma-4-31B", "Qwen3-8B", "Qwen3.5-27B", "Qwen3-Next-80B-A3B",
    "Command-A", "OLMo-3-7B", "Phi-3-mini-4k", "StarCoder2-15B", "MiniMax-M2", "SmolLM3-3B",
    "DeepSeek-V3", "LFM2-1.2B", "Llama-4-Scout", "Falcon-H1-34B", "Granite-4.0-H-Small",
]  # fmt: skip


@pytest.mark.parametrize("name", COMPARED)
def test_kinds_of_layers_are_those_of_transformers(name: str):
    values = dict(presets()[name]["config"])
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    ours = [y for y in preset_spec(name).layers if y.kind != "shared"]
    theirs = DynamicCache(config=config).layers
    assert len(ours) == len(theirs)
    for layer, other in zip(ours, theirs, strict=True):
        assert layer.kind in THEIRS[type(other).__name__]
        if layer.window is not None:
            assert getattr(other, "sliding_window", None) == layer.window


# Their defaults leave out what kvik asks for, transformers has another name for them, or (mllama)
# it keeps an image's K and V in a layer like any other.
NO_DEFAULTS = {
    "bamba", "deepseek_v4", "lfm2_moe", "mimo_v2_flash", "minimax_m3_vl", "minimax_m3_vl_text",
    "mllama_text_model", "step3p7",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(set(FAMILIES) & set(CONFIG_MAPPING) - NO_DEFAULTS))
def test_every_family_has_as_many_caches_as_in_transformers(kind: str):
    config = AutoConfig.for_model(kind)
    ours = plan_from_config(config.to_dict(), kind, kind).layers
    theirs = [type(layer).__name__ for layer in DynamicCache(config=config).layers]
    empty = [y.kind == "shared" or (y.kind == "state" and not y.states) for y in ours]
    assert [name == "DummyLayer" for name in theirs] == empty


def agrees(folder: Path) -> None:
    """What the decoder runs has the same cache when it is read for planning alone."""
    ours = load_spec(folder)
    plain = plan_from_config(json.loads((folder / "config.json").read_text()), "x", "x")
    for a, b in zip(ours.layers, plain.layers, strict=True):
        assert (a.kind, a.heads, a.kv_heads, a.k_dim, a.v_dim, a.window) == (
            *(b.kind, b.heads, b.kv_heads),
            *(b.k_dim, b.v_dim, b.window),
        )
    assert (ours.hidden, ours.ffn, ours.vocab, ours.context, ours.tied) == (
        *(plain.hidden, plain.ffn, plain.vocab),
        *(plain.context, plain.tied),
    )


@pytest.mark.parametrize(
    "name", ["Llama-3.1-8B", "Llama-3.2-1B", "SmolLM2-135M", "Gemma-3-270M", "Gemma-3-4B"]
)
def test_the_decoders_reader_and_this_one_agree(name: str, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(presets()[name]["config"]))
    agrees(tmp_path)
    spec = ModelSpec.load(tmp_path)
    assert spec.unrunnable == ""
    assert spec.layers[0].rope is not None
    assert spec.params == preset_spec(name).params


def test_the_published_file_of_gemma3_4b_leaves_sizes_out(tmp_path: Path):
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10_240,
            "num_hidden_layers": 34, "sliding_window": 1024}  # fmt: skip
    outer = {"model_type": "gemma3", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    assert ModelSpec.load(tmp_path).layers[5] == load_spec(tmp_path).layers[5]
    assert ModelSpec.load(tmp_path).params == preset_spec("Gemma-3-4B").params


def test_a_model_that_can_only_be_planned_says_why_it_cannot_run(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(BASE | {"model_type": "olmo2"}))
    spec = ModelSpec.load(tmp_path)
    assert "'olmo2' is not supported" in spec.unrunnable
    with pytest.raises(SpecError, match="'olmo2' is not supported"):
        load_spec(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"text_config":' * 900 + "1" + "}" * 900, "nested too deeply|model_type"),
        ("[" * 1_000_000, "nested too deeply"),
        ('{"hidden_size": ' + "9" * 100_000 + "}", "too many digits"),
        (" " * (17 << 20), "larger than"),
        ("[]", "no JSON object"),
        ("\x00", "not JSON"),
        ("", "not JSON"),
    ],
)
def test_hostile_files_end_in_one_line_at_once(text: str, said: str, tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(text)
    begin = time.process_time()
    with pytest.raises(SpecError, match=said) as error:
        ModelSpec.load(path)
    assert time.process_time() - begin < 1
    assert "\n" not in str(error.value)


def test_a_sparse_gigabyte_is_not_read(tmp_path: Path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(3 << 30)
    begin = time.process_time()
    with pytest.raises(SpecError, match="larger than"):
        ModelSpec.load(path)
    assert time.process_time() - begin < 1


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just([]),
    st.lists(st.one_of(st.integers(-2, 300), st.sampled_from(["full_attention", "mamba", "x"])),
             max_size=70),
    st.dictionaries(st.sampled_from(["kv_n_heads", "model_type", "head_dim"]), st.integers(-1, 9)),
    st.sampled_from([0, 1, -1, 1 << 31, 1 << 62, 10**300, float("inf")]),
)  # fmt: skip


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mutated_configurations_end_in_a_spec_or_a_spec_error(data: st.DataObject):
    values = dict(data.draw(st.sampled_from(list(presets().values())))["config"])
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(values)))
        if data.draw(st.booleans()):
            del values[name]
            if not values:
                return
        else:
            values[name] = data.draw(ODD)
    with suppress(SpecError):
        spec = plan_from_config(values, "config.json", "mutated")
        assert sum(layer.row_values for layer in spec.layers) >= 0
        assert sum(layer.state_bytes for layer in spec.layers) >= 0


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(kind=st.sampled_from(sorted({e["config"]["model_type"] for e in presets().values()})),
       values=st.dictionaries(st.sampled_from(sorted(BASE)), ODD))  # fmt: skip
def test_small_random_configurations_too(kind: str, values: dict[str, Any]):
    with suppress(SpecError):
        plan_from_config({**BASE, **values, "model_type": kind}, "config.json", "random")
