"""Weights from a Hugging Face folder: one safetensors file, or shards with an index."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from kvik.errors import KvikError, ModelError
from kvik.models.places import Place, expected_shapes, fused
from kvik.ops.native_linear import Packed, pack
from kvik.ops.shelf import Shelf
from kvik.spec import ModelSpec
from kvik.spec.jsonfile import read_json

READABLE = ("F64", "F32", "F16", "BF16")
PACKED_AS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
INDEX = "model.safetensors.index.json"
MAX_INDEX = 64 << 20

LAYER = {
    "attn_norm": "input_layernorm",
    **{f"{name}_proj": f"self_attn.{name}_proj" for name in "qkvo"},
    **{f"{name}_norm": f"self_attn.{name}_norm" for name in "qk"},
    **{f"{name}_proj": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}
# The norm before the feed-forward has another name where one follows attention too.
LLAMA = LAYER | {"ffn_norm": "post_attention_layernorm", "router": "mlp.gate"}
GEMMA = LAYER | {
    "post_attn_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffn_norm": "post_feedforward_layernorm",
}
MIXTRAL = LLAMA | {"router": "block_sparse_moe.gate"}
MIXTRAL_EXPERT = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
# Families that store a norm's weight less one.
GEMMAS = ("gemma2", "gemma3")
PHI3_FUSED = {
    "self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "mlp.gate_up_proj": ("gate_proj", "up_proj"),
}
# What a Gemma 3 that sees images has besides its text model, and what old files stored needlessly.
SPARE = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.|.*\.rotary_emb\.inv_freq$")

HEAD = "lm_head.weight"
ROWS = 4096  # of two large matrices that are compared at a time


class SafetensorsWeights:
    """The tensors of one folder."""

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        self._folder, self._spec, self._wanted = folder, spec, expected_shapes(spec)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, Any] = {}
        try:
            for file in shards(folder):
                self._add(file)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file}: cannot be read ({error}): fetch it again") from error
        ends = [name for name in self._shapes if name.endswith("embed_tokens.weight")]
        self._prefix = ends[0].removesuffix("embed_tokens.weight") if ends else "model."
        if spec.tied:
            self._check_head()

    def _check_head(self) -> None:
        """A head beside a tied embedding must be its copy: transformers would use another."""
        embedding = self._prefix + "embed_tokens.weight"
        for name in (name for name in self._shapes if name.endswith(HEAD)):
            if embedding not in self._shapes:
                continue
            same = self._shapes[name] == self._shapes[embedding]
            if not (same and _equal(self._files[name], name, self._files[embedding], embedding)):
                raise ModelError(
                    f"{self._folder}: {name} is not the copy of {embedding} that "
                    "tie_word_embeddings promises: set that field of config.json to false to use "
                    "the head"
                )

    def _add(self, file: Path) -> None:
        opened: Any = safe_open(file, framework="pt")
        for name in opened.keys():  # noqa: SIM118 (no mapping)
            if name in self._files:
                raise ModelError(f"{self._folder}: the tensor {name!r} is in two files")
            part = opened.get_slice(name)
            if part.get_dtype() not in READABLE and not self.spare(name):
                raise ModelError(
                    f"{file}: {name} has the type {part.get_dtype()}; {', '.join(READABLE)} can be "
                    "read: take the model's unquantized files, or its GGUF"
                )
            self._files[name] = opened
            self._shapes[name] = tuple(part.get_shape())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor in the folder."""
        return self._shapes

    def place(self, name: str) -> Place:
        """``layers.3.q_proj.weight`` is ``model.layers.3.self_attn.q_proj.weight`` here."""
        *head, part, kind = name.split(".")
        shape = self._wanted[name]
        if not head:
            top = {"embed": "embed_tokens.weight", "norm": "norm.weight"}
            outer = self._prefix.removesuffix("model.") + name
            return Place(outer if part == "lm_head" else self._prefix + top[part], shape)
        block, family = f"{self._prefix}layers.{head[1]}", self._spec.family
        if len(head) == 4:
            mixtral = family == "mixtral"
            inner = MIXTRAL_EXPERT[part] if mixtral else part
            outer = "block_sparse_moe" if mixtral else "mlp"
            return Place(f"{block}.{outer}.experts.{head[3]}.{inner}.{kind}", shape)
        if family == "phi3":
            for tensor, parts in PHI3_FUSED.items():
                if part in parts:
                    ours = [f"layers.{head[1]}.{each}.{kind}" for each in parts]
                    return fused(f"{block}.{tensor}.{kind}", name, ours, self._wanted)
        names = GEMMA if family in GEMMAS else MIXTRAL if family == "mixtral" else LLAMA
        return Place(f"{block}.{names[part]}.{kind}", shape)

    def spare(self, name: str) -> bool:
        """Parts that are not of the text model, and the copy of a tied embedding."""
        return bool(SPARE.match(name)) or (self._spec.tied and name.endswith(HEAD))

    def read(self, name: str) -> torch.Tensor:
        """The tensor that we call ``name``, float32."""
        values = self._part(name)
        # A copy even of float32: what safetensors gives may be a view of the mapped file.
        values = torch.empty(values.shape, dtype=torch.float32).copy_(values)
        if self._spec.family in GEMMAS and name.endswith("norm.weight"):
            values += 1.0
        if not values.sum().isfinite():
            theirs = self.place(name).tensor
            raise ModelError(f"{self._folder}: {theirs} holds NaN or infinity: fetch it again")
        return values

    def pack(self, name: str, shelf: Shelf) -> Packed:
        """The matrix that we call ``name``, in the file's type; float64 becomes float32."""
        values = self._part(name)
        if values.dtype == torch.float64:
            values = values.float()
        raw = values.contiguous().view(torch.uint8).numpy()
        try:
            shape = (values.shape[0], values.shape[1])
            return pack(raw, PACKED_AS[values.dtype], shape, shelf)
        except KvikError as error:
            theirs = self.place(name).tensor
            raise ModelError(f"{self._folder}: {theirs}: {error}: fetch it again") from error

    def _part(self, name: str) -> torch.Tensor:
        """The rows that are ``name``, as the file has them."""
        place = self.place(name)
        values: torch.Tensor = self._files[place.tensor].get_tensor(place.tensor)
        return values[place.start : place.start + self._wanted[name][0]]


def _equal(left_file: Any, left: str, right_file: Any, right: str) -> bool:
    """Whether two tensors of one shape hold the same values, whatever their types."""
    one, other = left_file.get_slice(left), right_file.get_slice(right)
    return all(
        torch.equal(one[at : at + ROWS].double(), other[at : at + ROWS].double())
        for at in range(0, one.get_shape()[0], ROWS)
    )


def shards(folder: Path) -> Iterable[Path]:
    """The files that hold a folder's weights; ModelError when there are none, or not all."""
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    if (folder / INDEX).is_file():
        return _indexed(folder)
    found = sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        raise ModelError(f"{folder}: holds no model.safetensors and no {INDEX}")
    return found


def _indexed(folder: Path) -> list[Path]:
    index = read_json(folder / INDEX, MAX_INDEX).get("weight_map")
    if not isinstance(index, dict) or not index:
        raise ModelError(f"{folder / INDEX}: the field weight_map is missing")
    names = {str(name) for name in index.values()}
    for name in sorted(names):
        # Only files of this folder: an index from elsewhere must not reach any other.
        if name in ("", ".", "..") or set(name) & set("/\\:\0"):
            raise ModelError(f"{folder / INDEX}: {name!r} is not the name of a file beside it")
        if not (folder / name).is_file():
            raise ModelError(f"{folder}: the shard {name} is missing: fetch the model again")
    return [folder / name for name in sorted(names)]
