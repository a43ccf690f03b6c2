"""A transformers model as a GGUF file: names by the gguf package, layouts as llama.cpp's converter.

The rules for rows and norms are written here once more and share nothing with kvik's reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

ARCHS = {
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
}
PERMUTED = ("mistral", "mixtral", "smollm3")
MERGED = {
    "mixtral": "layers.{}.feed_forward.experts.{}",
    "qwen3_moe": "model.layers.{}.mlp.experts.{}",
}
EXPERT = re.compile(r"model\.layers\.(\d+)\..*\.experts\.(\d+)\.(\w+)\.weight")


def write_gguf(model: Any, folder: Path, kind: str = "F32") -> Path:
    """Save ``model`` below ``folder`` and write its weights, matrices as ``kind``, to a file."""
    model.save_pretrained(folder)
    config, family = model.config, model.config.model_type
    arch = ARCHS[family]
    path = folder.with_suffix(".gguf")
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _metadata(writer, config)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, values in _tensors(config, load_file(folder / "model.safetensors")):
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, name
        # As the converter: routers stay float.
        if values.ndim > 1 and kind != "F32" and "gate_inp" not in theirs:
            quantized = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(theirs, gguf.quants.quantize(values, quantized), raw_dtype=quantized)
        else:
            writer.add_tensor(theirs, values)
    for writing in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        writing()
    return path


def _metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    rope, family = config.rope_parameters, config.model_type
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(int(head * rope.get("partial_rotary_factor", 1.0)))
    if family in ("mistral", "mixtral", "gemma2", "phi3"):
        writer.add_sliding_window(config.sliding_window or 0)
    if family == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if family in MERGED:
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if family == "qwen3_moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_weights_norm(config.norm_topk_prob)
    if "long_factor" in rope:
        old = rope["original_max_position_embeddings"]
        scale = config.max_position_embeddings / old
        writer.add_rope_scaling_orig_ctx_len(old)
        writer.add_rope_scaling_attn_factors((1 + np.log(scale) / np.log(old)) ** 0.5)
        for length in ("long", "short"):
            factors = np.array(rope[f"{length}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)


def _tensors(config: Any, saved: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    experts: dict[str, dict[int, np.ndarray]] = {}
    for name, values in saved.items():
        if found := EXPERT.fullmatch(name):
            merged = MERGED[config.model_type].format(found[1], found[3]) + ".weight"
            experts.setdefault(merged, {})[int(found[2])] = values
        elif config.model_type in PERMUTED and re.search(r"\.[qk]_proj\.", name):
            query = ".q_proj." in name
            heads = config.num_attention_heads if query else config.num_key_value_heads
            halves = values.reshape(heads, 2, -1, *values.shape[1:])
            yield name, np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        elif config.model_type == "gemma2" and name.endswith("norm.weight"):
            yield name, values + 1
        else:
            yield name, values
    for name, parts in experts.items():
        yield name, np.stack([parts[number] for number in range(len(parts))])
