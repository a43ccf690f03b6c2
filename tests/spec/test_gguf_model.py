"""ModelSpec from GGUF metadata: small files of each kind, and the two real models exactly."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvik.errors import SpecError
from kvik.models import sources
from kvik.spec import Experts, ModelSpec, load_spec

Make = Callable[..., Path]

BASE = {
    "context_length": 256,
    "embedding_length": 64,
    "block_count": 7,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 0.5,
}


EXPERTS = {"expert_count": 8, "expert_used_count": 2}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a GGUF file of ``BASE`` with changes (None leaves a key out)."""

    def written(
        arch: str = "llama",
        changes: dict[str, Any] | None = None,
        tensors: dict[str, np.ndarray] | None = None,
    ) -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, arch)
        for key, value in (BASE | (changes or {})).items():
            name = key if key.startswith(("general.", "split.")) else f"{arch}.{key}"
            if isinstance(value, bool):
                writer.add_bool(name, value)
            elif isinstance(value, int):
                writer.add_uint32(name, value)
            elif isinstance(value, float):
                writer.add_float32(name, value)
            elif isinstance(value, str):
                writer.add_string(name, value)
            elif value is not None:
                writer.add_array(name, value)
        shapes = {"token_embd.weight": np.zeros((50, 64), np.float32)} | (tensors or {})
        for name, values in shapes.items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return written


def test_llama(make: Make):
    spec = load_spec(make())
    assert (spec.name, spec.family, spec.context, spec.vocab) == ("model", "llama", 256, 50)
    assert (spec.hidden, spec.ffn, spec.norm_eps, spec.tied) == (64, 128, 0.5, True)
    layer = spec.layers[0]
    assert (len(spec.layers), layer.kind, layer.heads, layer.kv_heads) == (7, "full", 4, 2)
    assert (layer.k_dim, layer.v_dim, layer.scale, layer.rope.theta) == (16, 16, 0.25, 10_000.0)


def test_name_output_and_biases_come_from_the_file(make: Make):
    tensors = {
        "output.weight": np.zeros((50, 64), np.float32),
        "blk.0.attn_q.bias": np.zeros(64, np.float32),
    }
    spec = load_spec(make(changes={"general.name": "Tiny"}, tensors=tensors))
    assert (spec.name, spec.tied, spec.attention_bias) == ("Tiny", False, "q")


def test_head_dimensions_of_their_own(make: Make):
    dims = {"attention.key_length": 32, "attention.value_length": 8}
    layer = load_spec(make(changes=dims)).layers[0]
    assert (layer.k_dim, layer.v_dim, layer.rope.dim) == (32, 8, 32)


@pytest.mark.parametrize(
    ("changes", "linear"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1.0),
        ({"rope.scale_linear": 2.0}, 2.0),
    ],
)
def test_linear_scaling(make: Make, changes: dict[str, Any], linear: float):
    assert load_spec(make(changes=changes)).layers[0].rope.linear == linear


def test_the_tensor_of_rope_factors(make: Make):
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    rope = load_spec(make(tensors={"rope_freqs.weight": factors})).layers[-1].rope
    assert rope.factors == tuple(map(float, factors))


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        (np.ones(4, np.float32), "4 rope factors for 8 pairs"),
        (np.ones(8, np.float16), "F16"),
        (np.zeros(8, np.float32), "not above zero"),
        (np.full(8, np.nan, np.float32), "not above zero"),
    ],
)
def test_rope_factors_that_cannot_be_are_refused(make: Make, factors: np.ndarray, said: str):
    with pytest.raises(SpecError, match=said):
        load_spec(make(tensors={"rope_freqs.weight": factors}))


def test_gemma3(make: Make):
    changes = {
        "attention.sliding_window": 8,
        "rope.freq_base": 5e5,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
        "final_logit_softcapping": 30.0,
    }
    spec = load_spec(make("gemma3", changes))
    assert (spec.activation, spec.embed_scale, spec.final_softcap) == ("gelu_tanh", 8.0, 30.0)
    assert spec.qk_norm
    assert spec.post_norms
    assert [layer.kind for layer in spec.layers] == ["sliding"] * 5 + ["full", "sliding"]
    sliding, full = spec.layers[0], spec.layers[5]
    assert (sliding.window, sliding.rope.theta, sliding.rope.linear) == (8, 10_000.0, 1.0)
    assert (full.window, full.rope.theta, full.rope.linear) == (None, 5e5, 8.0)


@pytest.mark.parametrize(
    ("pattern", "kinds"),
    [
        (2, ["sliding", "full"] * 3 + ["sliding"]),
        ([True] * 3 + [False] * 4, ["sliding"] * 3 + ["full"] * 4),
    ],
)
def test_patterns_of_gemma3(make: Make, pattern: Any, kinds: list[str]):
    changes = {"attention.sliding_window": 8, "attention.sliding_window_pattern": pattern}
    assert [layer.kind for layer in load_spec(make("gemma3", changes)).layers] == kinds


def test_gemma3_27b_scales_by_the_width_of_a_head(make: Make):
    changes = {"block_count": 62, "attention.key_length": 32}
    assert load_spec(make("gemma3", changes)).layers[0].scale == 0.25


@pytest.mark.parametrize(
    ("arch", "changes", "said"),
    [
        ("qwen9", {}, "'qwen9' is not supported; llama, qwen2, .*gemma3 are"),
        ("llama", {"block_count": None}, "llama.block_count is missing"),
        ("llama", {"block_count": 1 << 31}, "llama.block_count must be a whole number"),
        ("llama", {"context_length": 0}, "llama.context_length"),
        ("llama", {"attention.head_count": [4] * 7}, "llama.attention.head_count must be"),
        ("llama", {"attention.head_count_kv": 3}, "4 query heads over 3"),
        ("llama", {"attention.layer_norm_rms_epsilon": float("inf")}, "rms_epsilon"),
        ("llama", {"attention.layer_norm_rms_epsilon": None}, "rms_epsilon is missing"),
        ("llama", {"rope.scaling.type": "yarn"}, "rope.scaling.type must be 'none' or 'linear'"),
        ("llama", {"rope.dimension_count": 8}, "rope.dimension_count must be the head dimension"),
        ("llama", {"expert_count": 8}, "llama.expert_used_count is missing"),
        ("llama", {"expert_count": 8, "expert_used_count": 9}, "expert_used_count must be"),
        ("llama", EXPERTS | {"expert_shared_count": 1}, "expert_shared_count must be 0 or absent"),
        ("llama", EXPERTS | {"expert_gating_func": 2}, "expert_gating_func must be"),
        ("llama", EXPERTS | {"expert_weights_scale": 2.5}, "expert_weights_scale must be"),
        ("llama", {"logit_scale": 0.5}, "llama.logit_scale must be absent"),
        ("llama", {"rope.scaling.attn_factor": 1.5}, "rope.scaling.attn_factor must be"),
        ("qwen3moe", EXPERTS, "expert_feed_forward_length is missing"),
        ("qwen2", {"attention.sliding_window": 8}, "qwen2.attention.sliding_window must be 0"),
        ("qwen3", {"rope.scaling.type": "yarn"}, "rope.scaling.type must be"),
        ("smollm3", {"rope.dimension_count": 8}, "rope.dimension_count must be the head"),
        ("phi3", {"expert_count": 16}, "phi3.expert_count must be 0 or absent"),
        ("llama", {"split.count": 3}, "one part of a split model"),
        ("llama", {"general.name": 3}, "general.name must be a string"),
        (
            "gemma3",
            {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True]},
            "lists 1, not 7",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(make: Make, arch: str, changes: Any, said: str):
    with pytest.raises(SpecError, match=said):
        load_spec(make(arch, changes))


def test_gemma2(make: Make):
    spec = load_spec(make("gemma2", {"attention.sliding_window": 8}))
    assert [layer.kind for layer in spec.layers] == ["sliding", "full"] * 3 + ["sliding"]
    assert {layer.softcap for layer in spec.layers} == {50.0}
    assert (spec.final_softcap, spec.post_norms, spec.qk_norm) == (30.0, True, False)
    assert load_spec(make("gemma2", {"block_count": 46})).layers[0].window == 4096
    wide = {"block_count": 46, "attention.key_length": 32}
    assert load_spec(make("gemma2", wide)).layers[0].scale == 0.25


def test_windows_that_llama_cpp_does_not_apply_are_the_models(make: Make):
    for arch in ("llama", "phi3"):
        sliding = {"attention.sliding_window": 8}
        spec = load_spec(make(arch, sliding))
        assert {(layer.kind, layer.window) for layer in spec.layers} == {("sliding", 8)}
        assert ModelSpec.load(make(arch, sliding)).unwindowed == ("llamacpp",)
        for none in (0, 256):
            path = make(arch, {"attention.sliding_window": none})
            assert {layer.kind for layer in load_spec(path).layers} == {"full"}
            assert ModelSpec.load(path).layers == load_spec(path).layers


def test_experts_norms_and_layers_without_rope(make: Make):
    mixtral = load_spec(make("llama", EXPERTS))
    assert mixtral.experts == Experts(8, 2, 128)
    qwen = load_spec(
        make("qwen3moe", EXPERTS | {"expert_feed_forward_length": 32, "expert_weights_norm": False})
    )
    assert (qwen.experts, qwen.qk_norm) == (Experts(8, 2, 32, normed=False), True)
    assert load_spec(make("qwen2")).qk_norm is False
    turns = [layer.rope is not None for layer in load_spec(make("smollm3")).layers]
    assert turns == [True] * 3 + [False] + [True] * 3


def test_longrope(make: Make):
    factors = {
        f"rope_factors_{length}.weight": np.full(4, value, np.float32)
        for length, value in (("long", 3.0), ("short", 1.5))
    }
    keys = {
        "rope.dimension_count": 8,
        "rope.scaling.original_context_length": 64,
        "rope.scaling.attn_factor": 1.25,
    }
    rope = load_spec(make("phi3", keys, factors)).layers[0].rope
    assert (rope.dim, rope.factors, rope.short) == (8, (3.0,) * 4, (1.5,) * 4)
    assert (rope.attention_factor, rope.short_context) == (1.25, 64)
    del keys["rope.scaling.attn_factor"]
    with pytest.raises(SpecError, match=r"attn_factor is missing"):
        load_spec(make("phi3", keys, factors))
    del factors["rope_factors_short.weight"]
    with pytest.raises(SpecError, match="one of the tensors"):
        load_spec(make("phi3", keys, factors))


def test_a_folder_with_one_gguf_is_that_model(make: Make):
    path = make()
    assert load_spec(path.parent) == load_spec(path)


def test_reading_a_spec_imports_no_torch(make: Make):
    code = (
        "import sys; from kvik.spec import load_spec; load_spec(sys.argv[1]);"
        "assert not {'torch', 'numpy', 'gguf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(make())], check=True)


@settings(max_examples=300, deadline=1000, suppress_health_check=list(HealthCheck))
@given(
    arch=st.sampled_from(["llama", "gemma3"]),
    flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), min_size=1, max_size=4),
)
def test_damaged_metadata_ends_in_a_spec_or_a_spec_error(make: Make, arch: str, flips: Any):
    path = make(arch, {"attention.sliding_window": 8, "rope.scaling.factor": 2.0})
    content = bytearray(path.read_bytes())
    for at, mask in flips:
        content[at % 700] ^= mask
    path.write_bytes(content)
    with suppress(SpecError):
        assert load_spec(path).layers[0].rope.frequencies()


def bytes_per_token(spec: ModelSpec, *kinds: str) -> int:
    """Bytes that one more token takes at two bytes a value, in layers of the given kinds."""
    layers = [layer for layer in spec.layers if layer.kind in kinds]
    return sum(2 * layer.kv_heads * (layer.k_dim + layer.v_dim) for layer in layers)


@pytest.mark.model
def test_smollm2_exactly():
    spec = load_spec(sources.get("smollm2-135m"))
    assert bytes_per_token(spec, "full", "sliding") == 23_040
    assert bytes_per_token(spec, "full") * 4096 == 90 << 20
    layer = spec.layers[0]
    assert (len(spec.layers), layer.heads, layer.kv_heads, layer.k_dim) == (30, 9, 3, 64)
    assert (spec.context, spec.vocab, spec.hidden, spec.ffn) == (8192, 49_152, 576, 1536)
    assert (spec.tied, layer.rope.theta) == (True, 100_000.0)


@pytest.mark.model
def test_gemma3_270m_exactly():
    spec = load_spec(sources.get("gemma3-270m"))
    assert bytes_per_token(spec, "full", "sliding") == 18_432
    assert bytes_per_token(spec, "full") == 3072
    growing, held = bytes_per_token(spec, "full"), bytes_per_token(spec, "sliding") * 512
    assert [(growing * n + held) / 2**20 for n in (4096, 32_768, 131_072)] == [19.5, 103.5, 391.5]
    assert [layer.kind for layer in spec.layers] == (["sliding"] * 5 + ["full"]) * 3
    layer = spec.layers[0]
    assert (layer.window, layer.heads, layer.kv_heads, layer.k_dim) == (512, 4, 1, 256)
    assert (spec.context, spec.vocab, spec.hidden, spec.ffn) == (32_768, 262_144, 640, 2048)
    assert (layer.rope.theta, spec.layers[5].rope.theta) == (10_000.0, 1_000_000.0)
    assert (spec.tied, spec.final_softcap) == (True, None)
