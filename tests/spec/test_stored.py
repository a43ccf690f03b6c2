"""How a configuration says its weights are stored, and what lies beside it."""

from __future__ import annotations

import json
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from kvik.errors import SpecError
from kvik.spec import ModelSpec
from kvik.spec.hf_config import plan_from_config
from kvik.spec.presets import preset_spec
from kvik.spec.stored import Stored

BASE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 2,  # layers 1 and 3
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
FP8 = 1 + Fraction(4, 128 * 128)


def plan(**changes: Any) -> ModelSpec:
    """The spec of ``BASE`` with changes."""
    return plan_from_config(BASE | changes, "config.json", "tiny")


def said(
    quantized: dict[str, Any], **more: Any
) -> dict[tuple[str, str], tuple[Fraction, Fraction]]:
    """Section and name of each format: bytes of a parameter and share."""
    stored = plan(quantization_config=quantized, **more).stored
    assert not stored.unknown
    return {(part.section, part.name): (part.size, part.share) for part in stored.coded}


def everywhere(name: str, size: Fraction, *but: str) -> dict[tuple[str, str], Any]:
    sections = ("attention", "experts", "shared", "output")
    return {(s, name): (size, Fraction(1)) for s in sections if s not in but}


def tensors(name: str, bits: int, kind: str, group: int | None, **more: Any) -> dict[str, Any]:
    """compressed-tensors with one group of weights."""
    weights = {"num_bits": bits, "type": kind, "group_size": group} | more
    return {"quant_method": "compressed-tensors", "config_groups": {name: {"weights": weights}}}


INT4 = Fraction(1, 2) + Fraction(5, 2) / 128
PER_LAYER = [f"model.layers.{i}.self_attn.o_proj" for i in range(3)]


@pytest.mark.parametrize(
    ("quantized", "expected"),
    [
        (BLOCKS, everywhere("fp8", FP8, "output")),
        ({"quant_method": "fp8"}, everywhere("fp8", Fraction(1), "output")),
        # Norms, gates and indexers among the names leave a section as it is.
        (
            BLOCKS | {"modules_to_not_convert": [
                "lm_head", "model.layers.0.mlp.gate", "model.layers.0.self_attn.q_norm",
                "model.layers.0.self_attn.indexer.k_norm", "e_score_correction_bias",
            ]},
            everywhere("fp8", FP8, "output"),
        ),
        (
            {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
            {("experts", "mxfp4"): (Fraction(17, 32), Fraction(1))},
        ),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128},
         everywhere("int4", INT4, "output")),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "lm_head": True},
         everywhere("int8", Fraction(1))),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128},
         everywhere("int4", INT4, "output")),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
         everywhere("nf4", Fraction(9, 16), "output")),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True},
         everywhere("int8", Fraction(1), "output")),
        # As Kimi-K2.5 has it: experts alone.
        (
            tensors("g", 4, "int", 32) | {"ignore": [
                "lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
                "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
            ]},
            {("experts", "int4"): (Fraction(9, 16), Fraction(1))},
        ),
        (tensors("g", 4, "int", 128, symmetric=False), everywhere("int4", INT4)),
        (tensors("g", 8, "float", None), everywhere("fp8", Fraction(1))),
        (tensors("g", 4, "float", 16), everywhere("nvfp4", Fraction(9, 16))),
        (tensors("g", 4, "float", 32), everywhere("mxfp4", Fraction(17, 32))),
        # ModelOpt, with the mixers of three layers of four left alone.
        (
            {"quant_algo": "NVFP4", "ignore": [*PER_LAYER, "lm_head"]},
            everywhere("nvfp4", Fraction(9, 16), "output", "attention")
            | {("attention", "nvfp4"): (Fraction(9, 16), Fraction(1, 4))},
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {
                "model.layers.0.self_attn.o_proj": {"quant_algo": "FP8"},
                "model.layers.1.mlp.experts.0.down_proj": {"quant_algo": "NVFP4"},
                "model.layers.3.mlp.experts.0.down_proj": {"quant_algo": "NVFP4"},
                "lm_head": {"quant_algo": "FP8"},
            }},
            {
                ("attention", "fp8"): (Fraction(1), Fraction(1, 4)),
                ("experts", "nvfp4"): (Fraction(9, 16), Fraction(1)),
                ("output", "fp8"): (Fraction(1), Fraction(1)),
            },
        ),
        # As DeepSeek-V4 has it: experts apart from all else.
        (
            BLOCKS | {"ignore": ["*.attn.*"], "quantized_layers": {
                "layers.1.ffn.experts": {"quant_algo": "NVFP4"},
                "layers.3.ffn.experts": {"quant_algo": "NVFP4"},
            }},
            everywhere("fp8", FP8, "output", "experts")
            | {("experts", "nvfp4"): (Fraction(9, 16), Fraction(1))},
        ),
    ],
)  # fmt: skip
def test_formats(quantized: dict[str, Any], expected: dict[tuple[str, str], Any]):
    assert said(quantized) == expected


def test_experts_of_deepseek_v4_say_their_type_outside():
    found = said(BLOCKS, expert_dtype="fp4")
    assert found["experts", "mxfp4"] == (Fraction(17, 32), Fraction(1))
    assert found["attention", "fp8"] == (FP8, Fraction(1))


@pytest.mark.parametrize(
    ("changes", "nbytes"),
    [
        ({}, 2), ({"torch_dtype": "bfloat16"}, 2), ({"dtype": "float16"}, 2),
        ({"torch_dtype": "float32"}, 4), ({"dtype": "torch.float32"}, 4),
        ({"torch_dtype": "auto"}, 2),
    ],
)  # fmt: skip
def test_floats(changes: dict[str, Any], nbytes: int):
    spec = plan(**changes)
    assert spec.params is not None
    assert spec.stored.weigh(spec.params) == nbytes * spec.params.total


def test_each_section_has_its_own_bytes():
    spec = plan(quantization_config=BLOCKS | {"modules_to_not_convert": ["experts"]})
    params = spec.params
    assert params is not None
    assert params.attention == 4 * (64 * 64 * 2 + 64 * 32 * 2 + 2 * 16)
    assert params.routed == 2 * 8 * 3 * 64 * 32
    coded = params.total - params.routed - params.embedding - params.output
    assert spec.stored.weigh(params) == FP8 * coded + 2 * (params.total - coded)


def test_levels_of_a_larger_model():
    outer = {"model_type": "some_vl", "torch_dtype": "bfloat16", "quantization_config": BLOCKS}
    spec = plan_from_config(outer | {"text_config": BASE}, "config.json", "tiny")
    assert spec.stored.coded
    assert spec.stored.plain == "bfloat16"
    inner = plan_from_config(
        {"model_type": "some_vl", "text_config": BASE | {"quantization_config": BLOCKS}}, "x", "x"
    )
    assert inner.stored.coded == spec.stored.coded


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [  # sums of the published files
        ("gpt-oss-20b", 13.76),
        ("gpt-oss-120b", 65.25),
        ("Kimi-K2.5", 595),
        ("DeepSeek-V3", 688 - 14),  # less the layer that predicts further tokens
        ("Llama-3.1-8B", 16.06),
    ],
)
def test_published_sizes(name: str, gigabytes: float):
    spec = preset_spec(name)
    assert spec.params is not None
    size = spec.stored.weigh(spec.params)
    assert size is not None
    assert float(size) / 1e9 == pytest.approx(gigabytes, rel=0.003)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quantization_config": {"quant_method": "magic"}}, "quant_method must be"),
        ({"quantization_config": {"group_size": 64, "bits": 4}}, "quant_method must be"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "quant_method must be"),
        ({"quantization_config": 7}, "quantization_config must be an object"),
        ({"quantization_config": {"quant_algo": "W1"}}, "quant_algo must be"),
        ({"quantization_config": {"quant_method": "gptq"}}, "w_bit is missing"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "load_in_8bit"),
        ({"quantization_config": BLOCKS | {"weight_block_size": [1]}}, "two whole numbers"),
        ({"quantization_config": BLOCKS | {"modules_to_not_convert": [1]}}, "names of modules"),
        ({"quantization_config": tensors("g", 4, "int", 32) | {"config_groups": {}}}, "groups"),
        (
            {"quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": {"num_bits": 4}}, "b": {"weights": {"num_bits": 8}},
                },
            }},
            "different weights",
        ),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_not_guessed(changes: dict[str, Any], words: str):
    """The cache is planned all the same."""
    spec = plan(**changes)
    assert words in spec.stored.unknown
    assert "\n" not in spec.stored.unknown
    assert spec.params is not None
    assert spec.stored.weigh(spec.params) is None
    assert sum(layer.row_values for layer in spec.layers) == 4 * 2 * 2 * 16


def test_patterns_of_a_file_are_never_run():
    """A hostile expression ends at once."""
    names = ["re:(a+)+$" + "a" * 4000 + "!", "(" * 5000, "re:" + "mlp(" * 5000] * 20
    start = time.process_time()
    plan(quantization_config=BLOCKS | {"modules_to_not_convert": names + ["x"] * 100_000})
    assert time.process_time() - start < 5


def write(folder: Path, **files: Any) -> Path:
    """``config.json`` of BASE and other JSON files."""
    (folder / "config.json").write_text(json.dumps(BASE))
    for name, content in files.items():
        (folder / f"{name.replace('__', '.')}.json").write_text(json.dumps(content))
    return folder


def tensor_file(path: Path, nbytes: int) -> None:
    path.write_bytes((2).to_bytes(8, "little") + b"{}" + bytes(nbytes))


def test_files_beside_a_configuration_say_more_than_it(tmp_path: Path):
    index = {"metadata": {"total_size": 13_760_000_000}, "weight_map": {}}
    write(tmp_path, model__safetensors__index=index)
    assert ModelSpec.load(tmp_path).stored.nbytes == 13_760_000_000
    assert ModelSpec.load(tmp_path / "config.json").stored.nbytes == 13_760_000_000


def test_without_an_index_the_files_are_added_up(tmp_path: Path):
    write(tmp_path)
    assert ModelSpec.load(tmp_path).stored == Stored()
    for part in (1, 2):
        tensor_file(tmp_path / f"model-0000{part}-of-00003.safetensors", 100)
    assert ModelSpec.load(tmp_path).stored.nbytes is None, "one of three is missing"
    tensor_file(tmp_path / "model-00003-of-00003.safetensors", 77)
    assert ModelSpec.load(tmp_path).stored.nbytes == 277
    (tmp_path / "model-00003-of-00003.safetensors").write_bytes(b"\xff" * 8)
    with pytest.raises(SpecError, match="fetch it again"):
        ModelSpec.load(tmp_path)


@pytest.mark.parametrize("total", [-1, 0, 1 << 60, "13 GB", True, [1]])
def test_an_absurd_index_is_refused(tmp_path: Path, total: Any):
    write(tmp_path, model__safetensors__index={"metadata": {"total_size": total}})
    with pytest.raises(SpecError, match="total_size must be"):
        ModelSpec.load(tmp_path)


def test_what_modelopt_writes_beside(tmp_path: Path):
    write(tmp_path, hf_quant_config={"quantization": {"quant_algo": "FP8"}})
    assert [part.name for part in ModelSpec.load(tmp_path).stored.coded] == ["fp8"] * 4
    write(tmp_path, hf_quant_config=[])
    with pytest.raises(SpecError, match="no JSON object"):
        ModelSpec.load(tmp_path)
