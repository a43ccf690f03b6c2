"""llama.cpp's cache types: the very blocks that the gguf package writes and reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvik.plan import kv_bytes
from kvik.recipe import Recipe
from kvik.spec.ggml import TENSOR_TYPES
from kvik.spec.model import LayerSpec, ModelSpec
from kvik.stages.ggml import TYPES, Ggml
from kvik.testing import check_codec

quants = pytest.importorskip("gguf.quants", reason="the package gguf says what is right")
BLOCK_BYTES = {t.name.lower(): t.nbytes for t in TENSOR_TYPES.values()}


def ggml_blocks(codec: Ggml, planes: dict[str, Tensor]) -> np.ndarray:
    """The planes of [1, T, D] interleaved as GGML stores a block: scale, minimum, high, code."""
    blocks = planes["scale"].shape[-1]
    parts = [
        planes[name].unflatten(-1, (blocks, -1)).contiguous().view(torch.uint8).numpy()
        for name in ("scale", "low", "high", "code")
        if name in planes
    ]
    return np.concatenate(parts, -1).reshape(planes["scale"].shape[1], -1)


def ggml_type(codec: Ggml) -> object:
    from gguf import GGMLQuantizationType

    return getattr(GGMLQuantizationType, codec.type.upper())


@pytest.mark.parametrize("name", TYPES)
def test_keeps_the_laws_of_codecs(name: str) -> None:
    check_codec(Ggml(name))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(TYPES), st.integers(0, 2**31), st.floats(1e-4, 1e3), st.integers(0, 3))
def test_blocks_are_those_of_ggml(name: str, seed: int, size: float, zeros: int) -> None:
    codec = Ggml(name)
    x = torch.randn(1, 5, 64, generator=torch.Generator().manual_seed(seed)) * size
    x[0, :zeros] = 0
    planes = codec.encode(x)
    blocks = ggml_blocks(codec, planes)
    if name != "iq4_nl":  # the package reads it but does not write it
        assert (blocks == quants.quantize(x[0].numpy(), ggml_type(codec))).all()
    read = quants.dequantize(blocks, ggml_type(codec))
    assert np.array_equal(read, codec.decode(planes)[0].numpy())


def test_levels_in_between_beat_even_ones() -> None:
    """On normal values iq4_nl is closer than q4_0 in as many bytes."""
    x = torch.randn(1, 256, 64, generator=torch.Generator().manual_seed(5))
    errors = [
        float((c.decode(c.encode(x)) - x).square().mean()) for c in map(Ggml, ("iq4_nl", "q4_0"))
    ]
    assert errors[0] < 0.95 * errors[1]


@pytest.mark.parametrize("name", TYPES)
def test_bytes_are_those_of_ggml(name: str) -> None:
    layer = LayerSpec("full", 4, 2, 64, 64)
    plan = Recipe.parse(name).resolve(ModelSpec("test", "llama", (layer,), 64, 1, 1, 1))
    assert kv_bytes(plan, 96).pages == 96 * 2 * 2 * 2 * BLOCK_BYTES[name]


def test_names_of_llama_cpp_for_floats() -> None:
    assert str(Recipe.parse("f16")) == "fp16"
    assert str(Recipe.parse("f32/q8_0")) == "fp32/q8_0"
    assert Recipe.parse("f16").digest == Recipe.parse("fp16").digest
