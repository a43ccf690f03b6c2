"""Weights: every storage type, both families, one layout; and refusal of what does not fit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
)

from kvik.errors import ModelError
from kvik.models import sources
from kvik.models.gguf_weights import LAYER, READABLE, TOP
from kvik.models.weights import expected_shapes, load_weights
from kvik.spec import LayerSpec, ModelSpec, Rope, load_spec
from kvik.spec.gguf import read_header

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 80,
    "max_position_embeddings": 128,
}
Type = gguf.GGMLQuantizationType


# Dequantizing one block as the format describes it, a value at a time.


def halves(raw: np.ndarray, *at: int) -> list[float]:
    return [float(raw[i : i + 2].view(np.float16)[0]) for i in at]


def plain_q4_0(raw: np.ndarray) -> Iterator[float]:
    (d,) = halves(raw, 0)
    for i in range(32):
        yield d * ((raw[2 + i % 16] >> (4 * (i // 16)) & 15) - 8.0)


def plain_q4_1(raw: np.ndarray) -> Iterator[float]:
    d, low = halves(raw, 0, 2)
    for i in range(32):
        yield d * float(raw[4 + i % 16] >> (4 * (i // 16)) & 15) + low


def plain_q5_0(raw: np.ndarray) -> Iterator[float]:
    (d,) = halves(raw, 0)
    for i in range(32):
        high = int(raw[2 + i // 8]) >> (i % 8) & 1
        yield d * ((int(raw[6 + i % 16]) >> (4 * (i // 16)) & 15 | high << 4) - 16.0)


def plain_q8_0(raw: np.ndarray) -> Iterator[float]:
    (d,) = halves(raw, 0)
    yield from (d * float(value) for value in raw[2:].view(np.int8))


def plain_q4_k(raw: np.ndarray) -> Iterator[float]:
    d, dmin = halves(raw, 0, 2)
    packed, quants = [int(b) for b in raw[4:16]], raw[16:]
    for i in range(256):
        group = i // 32
        if group < 4:
            scale, low = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
            low = packed[group + 4] >> 4 | packed[group] >> 6 << 4
        quant = int(quants[i // 64 * 32 + i % 32]) >> (4 * (group % 2)) & 15
        yield d * scale * quant - dmin * low


def plain_q6_k(raw: np.ndarray) -> Iterator[float]:
    (d,) = halves(raw, 208)
    low, high, scales = raw[:128], raw[128:192], raw[192:208].view(np.int8)
    for i in range(256):
        half, quarter, lane = i // 128, i % 128 // 32, i % 32
        four = int(low[half * 64 + quarter % 2 * 32 + lane]) >> (4 * (quarter // 2)) & 15
        two = int(high[half * 32 + lane]) >> (2 * quarter) & 3
        yield d * float(scales[i // 16]) * ((four | two << 4) - 32.0)


PLAIN = {
    "Q4_0": plain_q4_0,
    "Q4_1": plain_q4_1,
    "Q5_0": plain_q5_0,
    "Q8_0": plain_q8_0,
    "Q4_K": plain_q4_k,
    "Q6_K": plain_q6_k,
}
# Where a block keeps its half-precision scales, which random bytes must not make infinite.
SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_XS": (0,),
}


def random_blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """Rows of valid blocks: any bits but for scales of ordinary size."""
    rng = np.random.default_rng(len(kind) + ord(kind[1]))
    if kind in ("F32", "F16"):
        dtype = np.float32 if kind == "F32" else np.float16
        return rng.standard_normal((rows, columns)).astype(dtype).view(np.uint8)
    if kind == "BF16":
        bits = rng.standard_normal((rows, columns)).astype(np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16).view(np.uint8)
    elements, size = gguf.GGML_QUANT_SIZES[Type[kind]]
    blocks = rng.integers(0, 256, (rows * columns // elements, size), dtype=np.uint8)
    for at in SCALES[kind]:
        scales = rng.uniform(-0.1, 0.1, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales[:, None].view(np.uint8)
    return blocks.reshape(rows, -1)


def one_layer(hidden: int = 256, vocab: int = 1030) -> ModelSpec:
    layer = LayerSpec("full", 4, 2, hidden // 4, hidden // 4, rope=Rope(hidden // 4, 1e4))
    return ModelSpec("tiny", "llama", (layer,), 64, vocab, hidden, hidden)


def gguf_name(name: str) -> str:
    *head, part, kind = name.split(".")
    return f"blk.{head[1]}.{LAYER[part]}.{kind}" if head else f"{TOP[part]}.{kind}"


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes ``tensors`` as (values, type or None) under the file's names."""

    def written(tensors: dict[str, tuple[np.ndarray, str | None]]) -> Path:
        path = tmp_path / "weights.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for name, (values, kind) in tensors.items():
            writer.add_tensor(name, values, raw_dtype=None if kind is None else Type[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return written


def converted(rows: np.ndarray | torch.Tensor, heads: int) -> np.ndarray:
    """What the converter to GGUF does to Llama's Q and K: the halves of a head interleave."""
    halves = np.asarray(rows).reshape(heads, 2, -1, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def float_tensors(spec: ModelSpec) -> dict[str, tuple[np.ndarray, str | None]]:
    rng = np.random.default_rng(3)
    return {
        gguf_name(name): (rng.standard_normal(shape, dtype=np.float32), None)
        for name, shape in expected_shapes(spec).items()
    }


@pytest.mark.parametrize("kind", READABLE)
def test_every_storage_type_is_read(write_gguf, kind: str):
    spec = one_layer()
    tensors = float_tensors(spec)
    # More rows than one chunk holds, and a chunk that is not full at the end.
    raw = random_blocks(kind, spec.vocab, spec.hidden)
    tensors["token_embd.weight"] = (raw, kind)
    ours = load_weights(write_gguf(tensors), spec)["embed.weight"]
    assert ours.shape == (spec.vocab, spec.hidden)
    assert ours.dtype == torch.float32
    assert np.array_equal(ours.numpy(), gguf.quants.dequantize(raw, Type[kind]))


@pytest.mark.parametrize("kind", PLAIN)
def test_blocks_mean_what_the_format_says(write_gguf, kind: str):
    spec = one_layer(vocab=8)
    raw = random_blocks(kind, spec.vocab, spec.hidden)
    path = write_gguf(float_tensors(spec) | {"token_embd.weight": (raw, kind)})
    size = gguf.GGML_QUANT_SIZES[Type[kind]][1]
    plain = [value for block in raw.reshape(-1, size) for value in PLAIN[kind](block)]
    ours = load_weights(path, spec)["embed.weight"].flatten().double()
    torch.testing.assert_close(ours, torch.tensor(plain, dtype=torch.float64), rtol=1e-5, atol=1e-5)


def test_other_types_are_refused_by_name(write_gguf):
    spec = one_layer(vocab=8)
    raw = np.zeros((8, 84), np.uint8)
    path = write_gguf(float_tensors(spec) | {"token_embd.weight": (raw, "Q2_K")})
    with pytest.raises(ModelError, match=r"type Q2_K cannot be read; F32, .*IQ4_XS can"):
        load_weights(path, spec)


def test_rows_of_q_and_k_are_put_in_halves(write_gguf):
    spec = one_layer(hidden=64, vocab=8)
    tensors = float_tensors(spec)
    plain = {name: values for name, (values, _) in tensors.items()}
    heads = {"attn_q": 4, "attn_k": 2}
    for part, count in heads.items():
        name = f"blk.0.{part}.weight"
        tensors[name] = (converted(plain[name], count), None)
    ours = load_weights(write_gguf(tensors), spec)
    for name in expected_shapes(spec):
        assert np.array_equal(ours[name].numpy(), plain[gguf_name(name)]), name
        assert ours[name].is_contiguous()


def test_missing_unknown_and_wrong_tensors_are_named(write_gguf):
    spec = one_layer(hidden=64, vocab=8)
    tensors = float_tensors(spec)
    del tensors["blk.0.ffn_up.weight"]
    tensors["blk.0.extra.weight"] = (np.zeros(3, np.float32), None)
    tensors["output_norm.weight"] = (np.zeros(63, np.float32), None)
    tensors["rope_freqs.weight"] = (np.ones(8, np.float32), None)
    with pytest.raises(ModelError) as error:
        load_weights(write_gguf(tensors), spec)
    said = str(error.value)
    assert "missing: blk.0.ffn_up.weight" in said
    assert "unknown: blk.0.extra.weight" in said
    assert "wrong shape: output_norm.weight is [63] and must be [64]" in said
    assert "rope_freqs" not in said
    assert "\n" not in said


def test_values_that_are_no_numbers_are_refused(write_gguf):
    spec = one_layer(hidden=64, vocab=8)
    bad = np.full((8, 64), np.nan, np.float32)
    path = write_gguf(float_tensors(spec) | {"token_embd.weight": (bad, None)})
    with pytest.raises(ModelError, match="holds NaN"):
        load_weights(path, spec)


def llama(**changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SMALL | changes))


def gemma3(**changes: Any) -> Gemma3ForCausalLM:
    torch.manual_seed(0)
    model = Gemma3ForCausalLM(Gemma3TextConfig(**SMALL | {"sliding_window": 8} | changes))
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(weight, std=0.1)
    return model


def test_safetensors_of_llama(tmp_path: Path):
    model = llama(attention_bias=True)
    model.save_pretrained(tmp_path)
    spec = load_spec(tmp_path)
    ours, theirs = load_weights(tmp_path, spec), model.state_dict()
    assert set(ours) == set(expected_shapes(spec))
    assert len(ours) == len(theirs)
    layer = "model.layers.1."
    for name, other in {
        "embed.weight": "model.embed_tokens.weight",
        "lm_head.weight": "lm_head.weight",
        "norm.weight": "model.norm.weight",
        "layers.1.attn_norm.weight": layer + "input_layernorm.weight",
        "layers.1.ffn_norm.weight": layer + "post_attention_layernorm.weight",
        "layers.1.q_proj.weight": layer + "self_attn.q_proj.weight",
        "layers.1.k_proj.bias": layer + "self_attn.k_proj.bias",
        "layers.1.down_proj.weight": layer + "mlp.down_proj.weight",
    }.items():
        assert torch.equal(ours[name], theirs[other]), name


@pytest.mark.parametrize("kind", [llama, gemma3])
def test_a_head_beside_a_tied_embedding_must_be_its_copy(tmp_path: Path, kind: Any):
    model = kind(tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    stored, spec = load_file(file), load_spec(tmp_path)
    embedding = stored["model.embed_tokens.weight"]
    wanted = load_weights(tmp_path, spec)
    save_file(stored | {"lm_head.weight": embedding.clone()}, file)
    found = load_weights(tmp_path, spec)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)

    other = embedding.clone()
    other[-1, -1] += 1
    for head in (other, embedding[:-1].clone()):
        save_file(stored | {"lm_head.weight": head}, file)
        with pytest.raises(ModelError, match=r"lm_head\.weight is not the copy.*tie_word_emb"):
            load_weights(tmp_path, spec)

    # transformers uses such a head; so does kvik once the configuration admits it.
    save_file(stored | {"lm_head.weight": other}, file, metadata={"format": "pt"})
    theirs = type(model).from_pretrained(tmp_path)
    assert torch.equal(theirs.lm_head.weight, other)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    assert torch.equal(load_weights(tmp_path, load_spec(tmp_path))["lm_head.weight"], other)


def test_safetensors_of_gemma3_hold_the_norms_less_one(tmp_path: Path):
    model = gemma3()
    model.save_pretrained(tmp_path)
    ours, theirs = load_weights(tmp_path, load_spec(tmp_path)), model.state_dict()
    assert "lm_head.weight" not in ours
    layer = "model.layers.0."
    for name, other in {
        "norm.weight": "model.norm.weight",
        "layers.0.attn_norm.weight": layer + "input_layernorm.weight",
        "layers.0.post_attn_norm.weight": layer + "post_attention_layernorm.weight",
        "layers.0.ffn_norm.weight": layer + "pre_feedforward_layernorm.weight",
        "layers.0.post_ffn_norm.weight": layer + "post_feedforward_layernorm.weight",
        "layers.0.q_norm.weight": layer + "self_attn.q_norm.weight",
    }.items():
        assert torch.equal(ours[name], theirs[other] + 1), name
    assert torch.equal(ours["embed.weight"], theirs["model.embed_tokens.weight"])
    assert torch.equal(ours["layers.0.k_proj.weight"], theirs[layer + "self_attn.k_proj.weight"])


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_model_is_found_beside_a_vision_tower(tmp_path: Path, prefix: str):
    gemma3().save_pretrained(tmp_path)
    spec = load_spec(tmp_path)
    plain = load_weights(tmp_path, spec)
    file = tmp_path / "model.safetensors"
    moved = {name.replace("model.", prefix, 1): values for name, values in load_file(file).items()}
    tower = {
        "model.vision_tower.x": torch.ones(2, dtype=torch.int32),
        "vision_tower.y": torch.ones(2),
    }
    save_file(moved | tower, file)
    ours = load_weights(tmp_path, spec)
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_become_float32(tmp_path: Path, dtype: torch.dtype):
    model = llama().to(dtype)
    model.save_pretrained(tmp_path)
    ours = load_weights(tmp_path, load_spec(tmp_path))
    assert {values.dtype for values in ours.values()} == {torch.float32}
    assert torch.equal(ours["norm.weight"], model.model.norm.weight.float())


def test_shards_give_the_same_weights(tmp_path: Path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    llama().save_pretrained(whole)
    llama().save_pretrained(parts, max_shard_size="40KB")
    assert len(list(parts.glob("*.safetensors"))) > 2
    first, second = (load_weights(folder, load_spec(folder)) for folder in (whole, parts))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/x.safetensors", "a/b.safetensors", "..\\x", "..", "", "C:x", 7]
)
def test_an_index_cannot_name_files_elsewhere(tmp_path: Path, name: Any):
    folder = tmp_path / "model"
    llama().save_pretrained(folder, max_shard_size="40KB")
    (tmp_path / "x.safetensors").write_bytes(b"")
    index = {"weight_map": {"model.norm.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"is not the name of a file beside it|shard 7 is"):
        load_weights(folder, load_spec(folder))


def test_broken_folders_are_told(tmp_path: Path):
    llama().save_pretrained(tmp_path)
    spec = load_spec(tmp_path)
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-100])
    with pytest.raises(ModelError, match=r"cannot be read .*fetch it again"):
        load_weights(tmp_path, spec)
    file.write_bytes(b"\xff" * 64)
    with pytest.raises(ModelError, match="cannot be read"):
        load_weights(tmp_path, spec)
    file.write_bytes(content)
    tensors = load_file(file)
    save_file(tensors | {"model.norm.weight": torch.ones(64, dtype=torch.int8)}, file)
    with pytest.raises(ModelError, match=r"model\.norm\.weight has the type I8"):
        load_weights(tmp_path, spec)
    save_file({k: v for k, v in tensors.items() if "norm" not in k}, file)
    with pytest.raises(ModelError, match=r"missing: model\.layers\.0\.input.*model\.norm\.weight"):
        load_weights(tmp_path, spec)
    file.unlink()
    with pytest.raises(ModelError, match=r"holds no model\.safetensors"):
        load_weights(tmp_path, spec)


def test_an_index_without_a_shard_or_a_map_is_told(tmp_path: Path):
    llama().save_pretrained(tmp_path, max_shard_size="40KB")
    spec = load_spec(tmp_path)
    sorted(tmp_path.glob("*.safetensors"))[0].unlink()
    with pytest.raises(ModelError, match=r"the shard model-00001-of-.* is missing"):
        load_weights(tmp_path, spec)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match="weight_map"):
        load_weights(tmp_path, spec)


def test_a_spec_of_another_shape_is_refused_before_anything_is_read(tmp_path: Path):
    llama().save_pretrained(tmp_path)
    spec = replace(load_spec(tmp_path), vocab=10**9)
    with pytest.raises(ModelError, match=r"embed_tokens\.weight is \[80, 64\]"):
        load_weights(tmp_path, spec)


@pytest.mark.model
@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ("smollm2-135m", {"F32", "Q4_1", "Q8_0"}),
        ("gemma3-270m", {"F32", "Q5_0", "Q8_0", "Q4_K", "Q6_K"}),
    ],
)
def test_the_real_models_are_what_the_formats_own_reader_gives(model: str, kinds: set[str]):
    path = sources.get(model)
    spec = load_spec(path)
    start = time.process_time()
    ours = load_weights(path, spec)
    # The process's own time: other work on the machine is not the loader's.
    assert time.process_time() - start < 5
    data, tensors = np.memmap(path, mode="r"), read_header(path).tensors
    seen = set()
    for name, values in ours.items():
        if name.startswith("layers.") and int(name.split(".")[1]) % 6 != 5:
            continue
        info = tensors[gguf_name(name)]
        seen.add(info.type)
        raw = np.array(data[info.offset : info.offset + info.nbytes]).reshape(info.shape[0], -1)
        plain = gguf.quants.dequantize(raw, Type[info.type]).reshape(info.shape)
        if spec.family == "llama" and name.split(".")[-2] in ("q_proj", "k_proj"):
            values = converted(values, 9 if "q_proj" in name else 3)
        assert np.array_equal(values, plain), name
    assert seen == kinds
