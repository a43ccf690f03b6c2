"""Weights from a GGUF file, dequantized to float32 or packed as they are."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from kvik.errors import KvikError, ModelError
from kvik.models.places import Place, expected_shapes, fused, merged
from kvik.ops.native_linear import Packed, pack
from kvik.ops.shelf import Shelf
from kvik.spec import ModelSpec
from kvik.spec.ggml import TENSOR_TYPES
from kvik.spec.gguf import TensorInfo, read_header
from kvik.spec.gguf_model import ROPE_TENSORS

READABLE = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q4_K", "Q5_K", "Q6_K", "IQ4_XS"),
)
TYPES = {kind.name: kind for kind in TENSOR_TYPES.values()}

# Values dequantized at once: the temporaries of so many stay in the second-level cache, which is
# several times as fast as the library's own groups of 16 rows.
CHUNK = 1 << 17

TOP = {"embed": "token_embd", "norm": "output_norm", "lm_head": "output"}
LAYER = {
    "attn_norm": "attn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post_attn_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "post_ffn_norm": "post_ffw_norm",
    "router": "ffn_gate_inp",
}
EXPERT = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
QKV = ("q_proj", "k_proj", "v_proj")
# Architectures whose RoPE turns neighbouring channels there.
INTERLEAVED = ("llama", "smollm3")


class GgufWeights:
    """The tensors of one GGUF file."""

    def __init__(self, path: Path, spec: ModelSpec) -> None:
        self._path, self._spec, self._wanted = path, spec, expected_shapes(spec)
        self._tensors = read_header(path).tensors
        foreign = sorted({t.type for t in self._tensors.values()} - set(READABLE))
        if foreign:
            raise ModelError(
                f"{path}: tensors of type {', '.join(foreign)} cannot be read; "
                f"{', '.join(READABLE)} can"
            )

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor in the file."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def place(self, name: str) -> Place:
        """``layers.3.q_proj.weight`` is ``blk.3.attn_q.weight`` here, if not a part of another."""
        *head, part, kind = name.split(".")
        shape = self._wanted[name]
        if not head:
            return Place(f"{TOP[part]}.{kind}", shape)
        block, below = f"blk.{head[1]}", f"layers.{head[1]}"
        if len(head) == 4:
            assert self._spec.experts is not None
            tensor = f"{block}.{EXPERT[part]}.{kind}"
            return merged(tensor, int(head[3]), self._spec.experts.count, shape)
        if part in QKV and f"{block}.attn_qkv.{kind}" in self._tensors:
            parts = [f"{below}.{each}.{kind}" for each in QKV]
            return fused(f"{block}.attn_qkv.{kind}", name, parts, self._wanted)
        if self._spec.family == "phi3" and part in ("gate_proj", "up_proj"):
            parts = [f"{below}.{each}.{kind}" for each in ("gate_proj", "up_proj")]
            return fused(f"{block}.ffn_up.{kind}", name, parts, self._wanted)
        return Place(f"{block}.{LAYER[part]}.{kind}", shape)

    def spare(self, name: str) -> bool:
        """RoPE factors belong to the spec and are no weight."""
        return name in ROPE_TENSORS

    def read(self, name: str) -> torch.Tensor:
        """The tensor that we call ``name``, float32."""
        values = _dequantized(self._path, self._part(name))
        return torch.from_numpy(self._our_rows(name, values))

    def pack(self, name: str, shelf: Shelf) -> Packed:
        """The matrix that we call ``name``, its blocks as they are in the file."""
        tensor = self._part(name)
        out, into = tensor.shape
        raw = np.memmap(self._path, np.uint8, "r", tensor.offset, (out, tensor.nbytes // out))
        try:
            return pack(self._our_rows(name, raw), tensor.type, (out, into), shelf)
        except KvikError as error:
            raise ModelError(f"{self._path}: {tensor.name}: {error}: fetch it again") from error

    def _part(self, name: str) -> TensorInfo:
        """The rows that are ``name``, as if they were a tensor of their own."""
        place, shape = self.place(name), self._wanted[name]
        tensor = self._tensors[place.tensor]
        rows = prod(tensor.shape[:-1]) if len(tensor.shape) > 1 else tensor.shape[0]
        size = tensor.nbytes // rows
        offset = tensor.offset + place.start * size
        count = prod(shape[:-1]) if len(shape) > 1 else shape[0]
        return TensorInfo(tensor.name, tensor.type, shape, offset, count * size)

    def _our_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        part = name.split(".")[-2]
        if self._spec.family not in INTERLEAVED or part not in ("q_proj", "k_proj"):
            return rows
        layer = self._spec.layers[int(name.split(".")[1])]
        return _half_layout(rows, layer.heads if part == "q_proj" else layer.kv_heads)


def _half_layout(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undo the converter's order of a head's rows, pairs side by side, to two halves."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _dequantized(path: Path, tensor: TensorInfo) -> np.ndarray:
    block, kind = TYPES[tensor.type], GGMLQuantizationType[tensor.type]
    out = np.empty(tensor.shape, dtype=np.float32)
    flat = out.reshape(-1)
    with path.open("rb") as file, np.errstate(all="ignore"):
        file.seek(tensor.offset)
        for start in range(0, flat.size, CHUNK):
            part = flat[start : start + CHUNK]
            raw = np.frombuffer(file.read(part.size // block.elements * block.nbytes), np.uint8)
            if kind in (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1):
                _four_bits(raw.reshape(-1, block.nbytes), part)
            else:
                part[:] = dequantize(raw.reshape(1, -1), kind).reshape(-1)
            if not np.isfinite(part.sum()):
                raise ModelError(f"{path}: {tensor.name} holds NaN or infinity: fetch it again")
    return out


def _four_bits(blocks: np.ndarray, out: np.ndarray) -> None:
    """Q4_0 and Q4_1, computed in place: a third of the library's time, and the same bits.

    A block is one scale, in Q4_1 also a minimum, and 16 bytes: the low halves come first.
    """
    scales = np.ascontiguousarray(blocks[:, :-16]).view(np.float16).astype(np.float32)
    halves, values = out.reshape(-1, 2, 16), out.reshape(-1, 32)
    halves[:, 0] = blocks[:, -16:] & 15
    halves[:, 1] = blocks[:, -16:] >> 4
    if scales.shape[1] == 1:
        values -= 8
    values *= scales[:, :1]
    if scales.shape[1] == 2:
        values += scales[:, 1:]
