"""ModelSpec from config.json: what transformers builds from the same file, or a named refusal."""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, Gemma3Config, Gemma3TextConfig, LlamaConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from kvik.errors import SpecError
from kvik.spec import ModelSpec, load_spec

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
}
GEMMA: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 100,
    "sliding_window": 16,
    "max_position_embeddings": 512,
    "query_pre_attn_scalar": 20,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


@pytest.fixture
def write(tmp_path: Path):
    """Writes a configuration and gives its folder."""

    def written(config: dict[str, Any] | str, **changes: Any) -> Path:
        text = config if isinstance(config, str) else json.dumps(config | changes)
        (tmp_path / "config.json").write_text(text)
        return tmp_path

    return written


def assert_rope(spec: ModelSpec, folder: Path) -> None:
    """Frequencies equal those that transformers computes from the same file."""
    config = AutoConfig.from_pretrained(folder)
    config = getattr(config, "text_config", config)
    for index, layer in enumerate(spec.layers):
        if spec.family == "llama":
            theirs = LlamaRotaryEmbedding(config).inv_freq
        else:
            theirs = getattr(Gemma3RotaryEmbedding(config), f"{config.layer_types[index]}_inv_freq")
        ours = torch.tensor(layer.rope.frequencies(), dtype=torch.float32)
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=0)


def test_llama(write):
    folder = write(LLAMA)
    spec = load_spec(folder)
    planned = ModelSpec.load(folder / "config.json")
    assert planned == replace(spec, params=planned.params, source=planned.source)
    assert (spec.name, spec.family) == (folder.name, "llama")
    assert (spec.context, spec.vocab, spec.hidden, spec.ffn) == (512, 100, 64, 128)
    assert (spec.norm_eps, spec.activation, spec.tied) == (1e-5, "silu", False)
    assert len(spec.layers) == 3
    layer = spec.layers[0]
    assert (layer.kind, layer.heads, layer.kv_heads, layer.k_dim, layer.v_dim) == (
        *("full", 4, 2),
        *(16, 16),
    )
    assert layer.scale == 0.25
    assert_rope(spec, folder)


def test_absent_and_null_fields_of_llama_have_transformers_defaults(write):
    config = {k: v for k, v in LLAMA.items() if k not in ("num_key_value_heads", "rope_theta")}
    spec = load_spec(write(config, head_dim=None, rope_scaling=None, attention_bias=None))
    assert (spec.layers[0].kv_heads, spec.layers[0].k_dim) == (4, 16)
    assert spec.layers[0].rope.theta == 10_000.0


def test_head_dim_need_not_divide_the_width(write):
    assert load_spec(write(LLAMA, head_dim=40)).layers[0].k_dim == 40


def test_flags(write):
    spec = load_spec(write(LLAMA, attention_bias=True, tie_word_embeddings=True))
    assert spec.attention_bias == "qkvo"
    assert spec.tied


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_scaling": LLAMA3},
        {"rope_parameters": LLAMA3 | {"rope_theta": 500_000.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}},
    ],
)
def test_rotary_embeddings_of_llama(write, rope: dict[str, Any]):
    folder = write(LLAMA | {"rope_theta": 10_000.0}, head_dim=64, **rope)
    assert_rope(load_spec(folder), folder)


def test_gemma3(write):
    folder = write(GEMMA)
    spec = load_spec(folder)
    assert (spec.family, spec.context, spec.vocab, spec.tied) == ("gemma3", 512, 100, True)
    assert (spec.activation, spec.qk_norm, spec.post_norms) == ("gelu_tanh", True, True)
    assert spec.embed_scale == 8.0
    assert [layer.kind for layer in spec.layers] == ["sliding"] * 5 + ["full", "sliding"]
    assert {layer.window for layer in spec.layers} == {16, None}
    assert spec.layers[0].scale == pytest.approx(20**-0.5)
    assert_rope(spec, folder)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 50_000.0, "rope_local_base_freq": 300.0},
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 900.0},
            }
        },
    ],
)
def test_rotary_embeddings_of_gemma3(write, rope: dict[str, Any]):
    folder = write(GEMMA, **rope)
    assert_rope(load_spec(folder), folder)


def test_layer_kinds_of_gemma3(write):
    assert [x.kind for x in load_spec(write(GEMMA, sliding_window_pattern=2)).layers] == [
        *("sliding", "full") * 3,
        "sliding",
    ]
    kinds = ["full_attention"] * 3 + ["sliding_attention"] * 4
    spec = load_spec(write(GEMMA, layer_types=kinds))
    assert [x.kind for x in spec.layers] == ["full"] * 3 + ["sliding"] * 4


def test_softcap_of_gemma3(write):
    spec = load_spec(write(GEMMA, attn_logit_softcapping=None, final_logit_softcapping=30.0))
    assert {layer.softcap for layer in spec.layers} == {None}
    assert spec.final_softcap == 30.0


def test_the_text_model_inside_a_gemma3_with_images(write):
    # As published: most fields are left to their defaults.
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    folder = write(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": text,
        }
    )
    spec = load_spec(folder)
    assert (spec.vocab, len(spec.layers), spec.layers[0].kv_heads) == (262_208, 34, 4)
    per_token = [4 * layer.kv_heads * layer.k_dim for layer in spec.layers]
    assert sum(per_token) == 139_264
    full = [2 * x.kv_heads * (x.k_dim + x.v_dim) for x in spec.layers if x.kind == "full"]
    assert sum(full) == 20_480
    assert_rope(spec, folder)


@pytest.mark.parametrize(
    "config",
    [LlamaConfig(), Gemma3TextConfig(), Gemma3Config()],
    ids=["llama", "gemma3_text", "gemma3"],
)
def test_what_transformers_writes_is_read(tmp_path: Path, config: Any):
    config.save_pretrained(tmp_path)
    spec = load_spec(tmp_path)
    theirs = getattr(config, "text_config", config)
    assert (spec.hidden, spec.vocab, len(spec.layers), spec.context) == (
        *(theirs.hidden_size, theirs.vocab_size),
        *(theirs.num_hidden_layers, theirs.max_position_embeddings),
    )
    assert_rope(spec, tmp_path)


@pytest.mark.parametrize(
    ("config", "changes", "said"),
    [
        (LLAMA, {"architectures": ["FooForCausalLM"]}, "FooForCausalLM.*LlamaForCausalLM"),
        (LLAMA, {"architectures": ["LlamaForSequenceClassification"]}, "Classification"),
        (LLAMA, {"architectures": "LlamaForCausalLM"}, "architectures must be a list"),
        ({"hidden_size": 3}, {}, "model_type is missing"),
        (LLAMA, {"hidden_size": None}, "hidden_size is missing"),
        (LLAMA, {"hidden_size": "64"}, "hidden_size must be a whole number"),
        (LLAMA, {"hidden_size": 64.0}, "hidden_size"),
        (LLAMA, {"num_hidden_layers": True}, "num_hidden_layers"),
        (LLAMA, {"num_hidden_layers": 10**12}, "num_hidden_layers"),
        (LLAMA, {"vocab_size": -1}, "vocab_size"),
        (LLAMA, {"head_dim": 1 << 30}, "head_dim"),
        (LLAMA, {"head_dim": 15}, "rotary dimension"),
        (LLAMA, {"num_key_value_heads": 3}, "4 attention heads cannot share 3 KV heads"),
        (LLAMA, {"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        (LLAMA, {"rope_theta": 10**400}, "rope_theta"),
        (LLAMA, {"rope_theta": -1.0}, "rope_theta"),
        (LLAMA, {"mlp_bias": True}, "mlp_bias"),
        (LLAMA, {"hidden_act": "relu"}, "hidden_act must be 'silu' or absent, not 'relu'"),
        (LLAMA, {"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        (LLAMA, {"rope_scaling": [1]}, "rope_scaling must be an object"),
        (
            LLAMA,
            {"rope_scaling": {"type": "yarn"}},
            "type must be default, linear, llama3 or long",
        ),
        (LLAMA, {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
        (LLAMA, {"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "low_freq_factor"),
        (LLAMA, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (GEMMA, {"layer_types": ["full_attention"]}, "layer_types lists 1, not 7"),
        (GEMMA, {"layer_types": ["chunked"] * 7}, "layer_types must be"),
        (GEMMA, {"layer_types": {}}, "layer_types must be a list"),
        (GEMMA, {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (GEMMA, {"hidden_activation": "gelu"}, "hidden_activation"),
        (GEMMA, {"rope_parameters": {"rope_theta": 3.0}}, "full_attention and sliding_attention"),
        (
            GEMMA,
            {"architectures": ["Gemma3ForConditionalGeneration"]},
            "model_type must be 'gemma3'",
        ),
        (
            GEMMA,
            {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"},
            "text_config is missing",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(write, config, changes, said: str):
    folder = write(config, **changes)
    with pytest.raises(SpecError, match=said) as error:
        load_spec(folder)
    assert str(folder / "config.json") in str(error.value) or str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "no JSON object"),
        ("\x00\xff", "not JSON"),
        ("[" * 1_000_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
        ('{"a": ' + "9" * 100_000 + "}", "too many digits"),
    ],
    ids=["empty", "cut", "list", "binary", "deep list", "deep object", "long number"],
)
def test_broken_json_is_refused_fast(write, text: str, said: str):
    start = time.perf_counter()
    with pytest.raises(SpecError, match=said):
        load_spec(write(text))
    assert time.perf_counter() - start < 2


def test_a_gigabyte_of_json_is_not_read(tmp_path: Path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    start = time.perf_counter()
    with pytest.raises(SpecError, match="larger than"):
        load_spec(path)
    assert time.perf_counter() - start < 2


def test_folders_without_a_model_are_told(tmp_path: Path):
    with pytest.raises(SpecError, match="holds neither"):
        load_spec(tmp_path)
    with pytest.raises(SpecError, match="no such file or folder"):
        load_spec(tmp_path / "absent")
    with pytest.raises(SpecError, match="File name too long"):
        load_spec(tmp_path / ("a" * 5000))
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(SpecError, match=r"2 GGUF files.*a\.gguf, b\.gguf"):
        load_spec(tmp_path)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.text(max_size=4), max_size=8),
    st.dictionaries(
        st.sampled_from(["rope_type", "factor", "rope_theta", "full_attention", *LLAMA3]),
        st.one_of(st.integers(), st.floats(), st.just("llama3"), st.just({"factor": 2})),
        max_size=6,
    ),
)
FIELDS = sorted(LLAMA | GEMMA | {"rope_scaling": 0, "rope_parameters": 0, "layer_types": 0})


@settings(max_examples=300, deadline=1000)
@given(
    base=st.sampled_from([LLAMA, GEMMA]),
    changes=st.dictionaries(st.sampled_from(FIELDS), VALUES, min_size=1, max_size=3),
)
def test_whatever_a_field_holds_a_spec_or_a_spec_error_comes_out(base: Any, changes: Any):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(base | changes))
        with suppress(SpecError):
            spec = load_spec(folder)
            assert all(layer.rope.frequencies() for layer in spec.layers[:1])
