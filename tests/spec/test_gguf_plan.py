"""GGUF headers for planning: llama.cpp's rules for windows, latents, hybrids and shared caches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.plan.ask import ask

from kvik.errors import SpecError
from kvik.models import sources
from kvik.spec import ModelSpec, load_spec
from kvik.spec.gguf_families import ARCHS
from kvik.spec.gguf_plan import plan_from_gguf

Make = Callable[..., Path]
BASE: dict[str, Any] = {
    "context_length": 256,
    "embedding_length": 64,
    "block_count": 8,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16, "ssm.group_count": 2}
SWA = {"attention.sliding_window": 32}
MLA = {
    "attention.head_count_kv": 1,
    "attention.kv_lora_rank": 32,
    "attention.key_length_mla": 24,
    "attention.value_length_mla": 16,
    "attention.key_length": 40,
    "attention.value_length": 32,
    "rope.dimension_count": 8,
}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a GGUF file of ``BASE`` with changes (None leaves a key out)."""

    def written(arch: str, changes: dict[str, Any] | None = None, tensors: Any = None) -> Path:
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
        shapes = {"token_embd.weight": (50, 64)} | (tensors or {})
        for name, shape in shapes.items():
            writer.add_tensor(name, np.zeros(shape, np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return written


def letters(spec: ModelSpec) -> str:
    """First letters of the kinds: S for shared, - for a layer that keeps nothing."""
    marks = {"shared": "S", "state": "r"}
    return "".join(
        "-" if y.kind == "state" and not y.states else marks.get(y.kind, y.kind[0])
        for y in spec.layers
    )


@pytest.mark.parametrize(
    ("arch", "changes", "expected"),
    [
        ("qwen3", {}, "ffffffff"),
        ("gemma2", SWA, "sfsfsfsf"),
        ("gpt-oss", SWA, "sfsfsfsf"),
        ("gemma3", SWA, "sssssfss"),
        ("cohere2", SWA, "sssfsssf"),
        ("olmo2", SWA, "sssfsssf"),
        ("olmo2", {}, "ffffffff"),
        ("plamo3", SWA, "sssssssf"),
        ("smallthinker", SWA, "fsssfsss"),
        ("llama4", {}, "cccfcccf"),
        ("phi3", SWA, "ssssssss"),
        ("cohere2", SWA | {"attention.sliding_window_pattern": 2}, "sfsfsfsf"),
        ("cohere2", SWA | {"attention.sliding_window_pattern": 0}, "ssssssss"),
        ("cohere2", SWA | {"attention.sliding_window_pattern": 1}, "ffffffff"),
        ("gemma4", SWA | {"attention.sliding_window_pattern": [1] * 6 + [0] * 2}, "ssssssff"),
        ("gemma4", SWA | {"attention.sliding_window_pattern": [True, False] * 4,
                          "attention.shared_kv_layers": 4}, "sfsfSSSS"),
        ("gemma3n", SWA | {"block_count": 22}, "ssssf" * 4 + "SS"),
        # Layers that predict further tokens have no cache.
        ("glm4moe", {"nextn_predict_layers": 1}, "fffffff"),
        # No KV heads: recurrent, or nothing.
        ("jamba", SSM | {"attention.head_count_kv": [0, 0, 2, 0] * 2}, "rrfrrrfr"),
        ("deci", {"attention.head_count_kv": [2, 0, 2, 0] * 2}, "f-f-f-f-"),
        ("qwen3next", SSM, "rrrfrrrf"),
        ("qwen35", SSM | {"full_attention_interval": 2}, "rfrfrfrf"),
        ("qwen35", SSM | {"attention.recurrent_layers": [True] * 7 + [False]}, "rrrrrrrf"),
        ("mamba", SSM | {"attention.head_count": 0, "attention.head_count_kv": 0}, "rrrrrrrr"),
        ("falcon-h1", SSM, "ffffffff"),
        ("lfm2", {"attention.head_count_kv": [0, 2] * 4, "shortconv.l_cache": 3}, "rfrfrfrf"),
        ("kimi-linear", MLA | SSM | {"kda.head_dim": 16,
                                     "attention.head_count_kv": [0, 0, 0, 1] * 2}, "rrrlrrrl"),
    ],
)  # fmt: skip
def test_kinds_of_layers(make: Make, arch: str, changes: dict[str, Any], expected: str):
    assert letters(ModelSpec.load(make(arch, changes))) == expected


def test_sizes_of_a_window_may_differ(make: Make):
    changes = SWA | {
        "attention.key_length": 32, "attention.value_length": 32, "attention.key_length_swa": 16,
        "attention.value_length_swa": 8, "attention.head_count_kv": [4, 1] * 4,
        "attention.sliding_window_pattern": [True, False] * 4,
    }  # fmt: skip
    sliding, full = ModelSpec.load(make("gemma4", changes)).layers[:2]
    assert (sliding.kv_heads, sliding.k_dim, sliding.v_dim, sliding.window) == (4, 16, 8, 32)
    assert (full.kv_heads, full.k_dim, full.v_dim, full.window) == (1, 32, 32, None)


def test_llama4_attends_in_chunks_of_8192(make: Make):
    assert ModelSpec.load(make("llama4")).layers[0].window == 8192


def test_a_latent_is_stored_once(make: Make):
    layer = ModelSpec.load(make("deepseek2", MLA)).layers[0]
    assert (layer.kind, layer.row_values, layer.v_dim, layer.rope_dim) == ("latent", 40, 32, 8)
    assert layer.expanded == (24, 16)


def test_files_from_before_mla_store_every_head(make: Make):
    changes = {"attention.head_count_kv": 4, "attention.kv_lora_rank": 32,
               "attention.key_length": 24, "attention.value_length": 16}  # fmt: skip
    layer = ModelSpec.load(make("deepseek2", changes)).layers[0]
    assert (layer.kind, layer.row_values) == ("full", 4 * (24 + 16))


@pytest.mark.parametrize(
    ("more", "tensors", "count"),
    [
        ({}, None, 8),
        ({"attention.indexer.types": [True, False] * 4}, None, 4),
        ({"attention.indexer.types": ["full", "shared", "shared", "shared"] * 2}, None, 2),
        ({}, {"blk.2.indexer.attn_k.weight": (8, 64)}, 1),
    ],
)
def test_which_layers_have_an_indexer(make: Make, more: Any, tensors: Any, count: int):
    changes = MLA | {"attention.indexer.key_length": 8} | more
    spec = ModelSpec.load(make("glm-dsa", changes, tensors))
    assert sum(len(layer.extra) for layer in spec.layers) == count


def test_deepseek_v4_compresses(make: Make):
    changes = SWA | {
        "attention.head_count_kv": 1, "attention.key_length": 32, "attention.value_length": 32,
        "attention.compress_ratios": [0, 4, 128, 4, 128, 4, 128, 4], "rope.dimension_count": 8,
        "attention.indexer.key_length": 16,
    }  # fmt: skip
    plain, four, many = ModelSpec.load(make("deepseek4", changes)).layers[:3]
    assert (plain.kind, plain.window, plain.row_values, plain.extra) == ("latent", 32, 32, ())
    assert [(e.dim, e.ratio) for e in four.extra] == [(32, 4), (16, 4)]
    assert [(e.dim, e.ratio) for e in many.extra] == [(32, 128)]


def test_state_of_a_delta_net_is_float32_in_llama_cpp(make: Make):
    # Qwen3.5-27B: 48 layers of 48 heads of 128 x 128, and a convolution over 10,240 channels.
    sizes = {"ssm.conv_kernel": 4, "ssm.inner_size": 6144, "ssm.state_size": 128,
             "ssm.group_count": 16, "ssm.time_step_rank": 48}  # fmt: skip
    spec = ModelSpec.load(make("qwen35", sizes | {"block_count": 64}))
    mib = sum(layer.state_bytes for layer in spec.layers) / (1 << 20)
    assert mib == pytest.approx(149.63, abs=0.005)


def test_feed_forward_blocks_among_recurrent_ones_keep_nothing(make: Make):
    changes = SSM | {"attention.head_count_kv": [0, 0, 2, 0] * 2}
    tensors = {f"blk.{i}.ssm_in.weight": (8, 64) for i in (0, 4)}
    spec = ModelSpec.load(make("nemotron_h_moe", changes, tensors))
    assert letters(spec) == "r-f-r-f-"


def test_weights_are_counted_from_the_tensors(make: Make):
    tensors = {"blk.0.ffn_up_exps.weight": (8, 16, 64), "output.weight": (50, 64)}
    changes = {"expert_count": 8, "expert_used_count": 2}
    params = ModelSpec.load(make("qwen3moe", changes, tensors)).params
    assert params is not None
    assert params.total == 50 * 64 * 2 + 8 * 16 * 64
    assert params.active == params.total - 6 * 16 * 64 - 50 * 64, "one row of the table is read"
    assert (params.embedding, params.output, params.file_bytes) == (3200, 3200, 2 * params.total)


def test_the_first_part_of_a_split_model_has_no_count(make: Make):
    spec = ModelSpec.load(make("qwen3", {"split.count": 3}))
    assert letters(spec) == "ffffffff"
    assert spec.params is None


def test_llama_cpp_reads_no_window_of_a_llama(make: Make):
    """kvik's decoder applies it; llama.cpp's file for this architecture does not read the key."""
    assert ModelSpec.load(make("llama", SWA)).unwindowed == ("llamacpp",)
    assert ModelSpec.load(make("gemma3", SWA)).unwindowed == ()
    spec = ModelSpec.load(make("llama", SWA))
    held = ask(spec, 256, engine="llamacpp")["engine"]["reserved_bytes_per_request"]
    assert held == 256 * 8 * 2 * 32 * 2
    assert ask(spec, 256)["kv"]["bytes"] == 32 * 8 * 2 * 32 * 2


def test_what_the_decoder_runs_has_the_same_cache(make: Make):
    for arch, changes in (("llama", {}), ("gemma3", SWA), ("llama", SWA)):
        path = make(arch, changes)
        ours, plain = load_spec(path), plan_from_gguf(path)
        assert [(y.kind, y.kv_heads, y.k_dim, y.v_dim, y.window) for y in ours.layers] == [
            (y.kind, y.kv_heads, y.k_dim, y.v_dim, y.window) for y in plain.layers
        ]
        assert ModelSpec.load(path).unrunnable == ""


def test_what_cannot_run_says_why(make: Make):
    assert "'olmo2' is not supported" in ModelSpec.load(make("olmo2")).unrunnable


@pytest.mark.parametrize(
    ("arch", "changes", "said"),
    [
        ("qwen9", {}, "general.architecture is 'qwen9', whose cache is not known"),
        ("qwen3", SWA, "qwen3.attention.sliding_window_pattern is missing"),
        ("qwen3", {"attention.head_count_kv": 3}, "4 attention heads cannot share 3"),
        ("qwen3", {"attention.head_count_kv": [2] * 3}, "lists 3, not 8"),
        ("qwen3", {"attention.head_count_kv": [-2] * 8}, "must be a list of whole numbers"),
        ("qwen3", {"attention.head_count": 1 << 31}, "more than the embedding_length"),
        ("qwen3", {"block_count": 1 << 30}, "block_count must be"),
        ("qwen3", {"block_count": None}, "block_count is missing"),
        ("qwen3", {"nextn_predict_layers": 8}, "nextn_predict_layers must be"),
        ("qwen3", {"attention.key_length": 1 << 30}, "key_length must be"),
        ("gemma4", SWA | {"attention.sliding_window_pattern": 2,
                          "attention.shared_kv_layers": 8}, "shared_kv_layers must be"),
        ("deepseek2", {"attention.key_length_mla": 8}, "kv_lora_rank is missing"),
        ("glm-dsa", MLA | {"attention.indexer.key_length": 8, "attention.indexer.types": [7] * 8},
         "indexer.types must be"),
        ("qwen3next", {}, "ssm.conv_kernel is missing"),
        ("qwen3moe", {"expert_count": 4, "expert_used_count": 5}, "expert_used_count must be"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(make: Make, arch: str, changes: Any, said: str):
    with pytest.raises(SpecError, match=said) as error:
        ModelSpec.load(make(arch, changes))
    assert "\n" not in str(error.value)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    arch=st.sampled_from(sorted(ARCHS)),
    keys=st.dictionaries(
        st.sampled_from(sorted(BASE | SSM | SWA | MLA | {
            "attention.sliding_window_pattern": 0, "attention.indexer.key_length": 0,
            "attention.indexer.types": 0, "attention.compress_ratios": 0, "expert_count": 0,
            "attention.shared_kv_layers": 0, "nextn_predict_layers": 0, "shortconv.l_cache": 0,
        })),
        st.one_of(
            st.none(), st.integers(0, 9), st.floats(width=32), st.booleans(), st.text(max_size=4),
            st.lists(st.integers(-1, 5), min_size=8, max_size=8),
            st.lists(st.booleans(), min_size=8, max_size=8),
        ),
        max_size=5,
    ),
)  # fmt: skip
def test_mutated_headers_end_in_a_spec_or_a_spec_error(make: Make, arch: str, keys: Any):
    path = make(arch, keys)
    with suppress(SpecError):
        spec = ModelSpec.load(path)
        assert sum(layer.row_values + layer.state_bytes for layer in spec.layers) >= 0


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_the_real_files_and_their_presets_agree(name: str):
    file, preset = ModelSpec.load(sources.get(name)), ModelSpec.load(name)
    assert [(y.kind, y.row_values, y.window) for y in file.layers] == [
        (y.kind, y.row_values, y.window) for y in preset.layers
    ]
    assert file.params is not None
    assert preset.params is not None
    # A GGUF of Llama 3's family may hold rotary factors besides; these two hold none.
    assert (file.params.total, file.params.output) == (preset.params.total, 0)
    assert file.params.file_bytes is not None
    assert file.params.file_bytes < sources.get(name).stat().st_size
