"""Configurations of families beside Llama and Gemma 3: as transformers reads them, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from kvik.errors import SpecError
from kvik.spec import Experts, ModelSpec, load_spec

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}
LONG = {"rope_type": "longrope", "long_factor": [2.0] * 8, "short_factor": [1.0] * 8}


def read(tmp_path: Path, kind: str, **changes: Any) -> ModelSpec:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind} | SIZES | changes))
    return load_spec(tmp_path)


@pytest.mark.parametrize(
    "name", ["Mistral", "Mixtral", "Qwen2", "Qwen3", "Qwen3Moe", "Phi3", "SmolLM3", "Gemma2"]
)
def test_what_transformers_writes_by_default_is_read(tmp_path: Path, name: str) -> None:
    config = getattr(transformers, f"{name}Config")()
    if name == "Qwen3Moe":
        config.head_dim = 128
    config.architectures = [f"{name}ForCausalLM"]
    config.save_pretrained(tmp_path)
    spec = load_spec(tmp_path)
    assert (spec.hidden, spec.vocab, len(spec.layers), spec.context, spec.norm_eps) == (
        *(config.hidden_size, config.vocab_size, config.num_hidden_layers),
        *(config.max_position_embeddings, config.rms_norm_eps),
    )
    assert spec.tied == config.tie_word_embeddings
    turning = [layer.rope for layer in spec.layers if layer.rope]
    assert {rope.theta for rope in turning} == {config.rope_parameters["rope_theta"]}
    # The planner reads the same layers, and says which engines apply no window.
    planned = ModelSpec.load(tmp_path)
    assert planned.layers == spec.layers
    assert not planned.unrunnable
    assert planned.params is not None


def test_absent_fields_mean_what_transformers_takes_them_for(tmp_path: Path) -> None:
    assert {y.window for y in read(tmp_path, "mistral", max_position_embeddings=8192).layers} == {
        4096
    }
    assert {y.kind for y in read(tmp_path, "mistral", sliding_window=None).layers} == {"full"}
    gemma = read(tmp_path, "gemma2")
    assert {y.softcap for y in gemma.layers} == {50.0}
    assert gemma.final_softcap == 30.0
    none = read(tmp_path, "gemma2", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert {y.softcap for y in none.layers} == {None}
    assert none.final_softcap is None
    assert [y.kind for y in gemma.layers] == ["sliding", "full"] * 2
    assert [y.rope is None for y in read(tmp_path, "smollm3").layers] == [False] * 3 + [True]
    assert read(tmp_path, "smollm3").layers[0].rope.theta == 2e6
    assert read(tmp_path, "qwen2").attention_bias == "qkv"
    assert read(tmp_path, "mixtral").experts == Experts(8, 2, 128)
    sparse = read(tmp_path, "qwen3_moe", head_dim=16)
    assert sparse.experts == Experts(128, 8, 768, normed=False)
    steps = read(tmp_path, "qwen3_moe", decoder_sparse_step=2, mlp_only_layers=[3])
    assert [steps.has_experts(i) for i in range(4)] == [False, True, False, False]


def test_longrope_keeps_both_sets_until_it_is_settled(tmp_path: Path) -> None:
    spec = read(tmp_path, "phi3", rope_scaling=LONG, original_max_position_embeddings=64)
    rope = spec.layers[0].rope
    assert (rope.factors, rope.short, rope.short_context) == ((2.0,) * 8, (1.0,) * 8, 64)
    assert rope.attention_factor == pytest.approx((1 + 0.5) ** 0.5)  # ln 8 / ln 64
    short, long = spec.within(64), spec.within(65)
    assert (short.context, short.layers[0].rope.factors) == (64, (1.0,) * 8)
    assert (long.context, long.layers[0].rope.factors) == (512, (2.0,) * 8)
    assert long.layers[0].rope.frequencies() == rope.frequencies()
    # As published before transformers had a name for it; a context that was never extended.
    old = LONG | {"type": "su", "rope_type": None}
    assert read(tmp_path, "phi3", rope_scaling=old).layers[0].rope.factors == (1.0,) * 8


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("mistral", {"hidden_act": "gelu"}, "hidden_act must be 'silu' or absent"),
        ("mistral", {"attention_bias": True}, "attention_bias must be False"),
        ("mistral", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type must be"),
        ("mistral", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ("qwen2", {"attention_bias": False}, "attention_bias must be True"),
        ("qwen2", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.type must"),
        ("qwen3", {}, "head_dim is missing"),
        ("gemma2", {"hidden_activation": "relu"}, "hidden_activation must be"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma2", {"layer_types": ["full_attention"]}, "layer_types lists 1, not 4"),
        ("gemma2", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary"),
        ("phi3", {"partial_rotary_factor": 1.5}, "partial_rotary_factor must be a share"),
        ("phi3", {"rope_scaling": LONG | {"long_factor": None}}, "long_factor is missing"),
        ("phi3", {"rope_scaling": LONG | {"long_factor": [0.0] * 8}}, "long_factor must be a list"),
        ("phi3", {"rope_scaling": LONG | {"short_factor": [1.0]}}, "1 rope factors for 8 pairs"),
        ("phi3", {"rope_scaling": {"type": "yarn"}}, "rope_scaling.type must be"),
        ("smollm3", {"mlp_bias": True}, "mlp_bias must be False"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers must be a list with an entry"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok must be .* to 8"),
        ("mixtral", {"num_local_experts": 0}, "num_local_experts must be"),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8}, "use_sliding_window|max_"),
        ("qwen3_moe", {"mlp_only_layers": [4]}, "mlp_only_layers must be a list"),
        ("qwen3_moe", {"shared_expert_intermediate_size": 8}, "shared_expert_intermediate_size"),
        ("qwen3_moe", {"norm_topk_prob": 1}, "norm_topk_prob must be true or false"),
        ("qwen2_moe", {}, "'qwen2_moe' is not supported; .*MixtralForCausalLM"),
    ],
)
def test_what_the_decoder_does_not_compute_is_refused_by_name(
    tmp_path: Path, kind: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        read(tmp_path, kind, **changes)


# Every family with what its smallest configuration needs.
EVERY = {
    "llama": {},
    "mistral": {},
    "mixtral": {},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {"head_dim": 16},
    "phi3": {},
    "smollm3": {},
    "gemma2": {},
    "gemma3_text": {},
}


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("said", [False, None])
def test_attention_to_later_tokens_is_refused(tmp_path: Path, kind: str, said: Any) -> None:
    assert read(tmp_path, kind, **EVERY[kind], is_causal=True).layers
    with pytest.raises(SpecError, match=f"is_causal must be true or absent, not {said}"):
        read(tmp_path, kind, **EVERY[kind], is_causal=said)
    # The planner needs no mask: the cache is the same.
    assert "is_causal" in ModelSpec.load(tmp_path).unrunnable


def test_a_model_with_images_is_asked_at_both_levels(tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text"} | SIZES
    for outer, inner in (({}, {"is_causal": False}), ({"is_causal": False}, {})):
        with pytest.raises(SpecError, match="is_causal must be true"):
            read(tmp_path, "gemma3", text_config=text | inner, **outer)


FULL, SLIDING = "full_attention", "sliding_attention"
MIXED = [FULL, SLIDING, FULL, FULL]
USED = {"use_sliding_window": True, "sliding_window": 7}
# What transformers makes of a list of kinds: the layers with a window, or None where kvik refuses.
LISTS: list[tuple[str, dict[str, Any], list[str], list[int] | None]] = [
    ("llama", {"sliding_window": 7}, MIXED, None),
    ("llama", {"sliding_window": 7}, [SLIDING] * 4, None),
    ("llama", {"sliding_window": 7}, [FULL] * 4, []),
    ("mistral", {"sliding_window": 7}, MIXED, None),
    ("mistral", {"sliding_window": 7}, [FULL] * 4, None),
    ("mistral", {"sliding_window": 7}, [SLIDING] * 4, [0, 1, 2, 3]),
    ("mistral", {"sliding_window": None}, [FULL] * 4, []),
    ("mistral", {"sliding_window": 512}, MIXED, []),
    ("mixtral", {"sliding_window": 7}, MIXED, None),
    ("mixtral", {"sliding_window": 7}, [SLIDING] * 4, [0, 1, 2, 3]),
    ("phi3", {"sliding_window": 7}, [FULL] * 4, None),
    ("phi3", {"sliding_window": 7}, [SLIDING] * 4, [0, 1, 2, 3]),
    ("qwen2", USED, MIXED, [1]),
    ("qwen2", {"sliding_window": 7}, MIXED, None),
    ("qwen2", {}, ["chunked_attention"] * 4, None),
    ("qwen2", {}, ["attention"] * 4, None),
    ("qwen2", {}, [FULL] * 4, []),
    ("qwen2", {}, [FULL] * 3, None),
    ("qwen3", USED, MIXED, [1]),
    ("qwen3", USED | {"use_sliding_window": False}, MIXED, None),
    ("qwen3", {}, ["chunked_attention"] * 4, None),
    ("qwen3_moe", {}, MIXED, None),
    ("qwen3_moe", {}, ["chunked_attention"] * 4, None),
    ("qwen3_moe", {}, [FULL] * 4, []),
    ("smollm3", USED, MIXED, [1]),
    ("gemma2", {"sliding_window": 7}, MIXED, [1]),
    ("gemma2", {}, ["chunked_attention"] * 4, None),
]


@pytest.mark.parametrize(("kind", "changes", "kinds", "windows"), LISTS)
def test_a_list_of_kinds_is_transformers_or_refused(
    tmp_path: Path,
    kind: str,
    changes: dict[str, Any],
    kinds: list[str],
    windows: list[int] | None,
) -> None:
    options = EVERY[kind] | changes | {"layer_types": kinds}
    if windows is None:
        with pytest.raises(SpecError, match="layer_types"):
            read(tmp_path, kind, **options)
    else:
        layers = read(tmp_path, kind, **options).layers
        assert [i for i, layer in enumerate(layers) if layer.kind == "sliding"] == windows


@pytest.mark.parametrize(
    ("kind", "changes", "absent", "said"),
    [
        ("llama", {"num_kv_heads": 2}, "num_key_value_heads", "num_kv_heads must be absent"),
        ("qwen2", {"attention_head_dim": 8}, "", "attention_head_dim must be absent"),
        ("mixtral", {"window_size": 7}, "", "window_size must be absent.*in sliding_window"),
        ("llama", {"v_head_dim": 8}, "", "v_head_dim must be 16 or absent"),
        ("gemma2", {"v_head_dim": 8, "head_dim": 16}, "", "v_head_dim must be 16 or absent"),
        ("gemma2", {"sliding_window_pattern": 3}, "", "sliding_window_pattern must be 2"),
    ],
)
def test_fields_that_transformers_ignores_are_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any], absent: str, said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        read(tmp_path, kind, **EVERY[kind] | changes | ({absent: None} if absent else {}))
    # The planner, which knows what such fields mean elsewhere, answers all the same.
    assert ModelSpec.load(tmp_path).unrunnable


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("granite", {"architectures": ["LlamaForCausalLM"]}, "model_type must be 'llama' or abs"),
        ("llama", {"architectures": ["MistralForCausalLM"]}, "model_type must be 'mistral'"),
        ("gemma3_text", {"attn_logit_softcapping": 2.0}, "attn_logit_softcapping must be absent"),
    ],
)
def test_what_transformers_computes_otherwise_is_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        read(tmp_path, kind, **changes)
    # The planner goes by `model_type`, as transformers does.
    planned = ModelSpec.load(tmp_path)
    assert (planned.family, len(planned.layers)) == (kind, 4)
    assert planned.unrunnable


def test_a_class_alone_names_the_family(tmp_path: Path) -> None:
    found = read(tmp_path, "", model_type=None, architectures=["Other", "MistralForCausalLM"])
    assert found.family == "mistral"
