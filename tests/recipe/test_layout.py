"""Where the bytes of a page lie, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tracers

from kvik.errors import RecipeError
from kvik.plan import kv_bytes
from kvik.recipe import Plan, Recipe
from kvik.recipe.codec import ITEM_BYTES
from kvik.recipe.layout import PageFormat, align
from kvik.spec.model import LayerSpec, ModelSpec, Rope

assert tracers.PerChannel.names  # importing them registered them

LAYER = LayerSpec("full", 9, 3, 64, 64, rope=Rope(64, 10_000.0))


def model(*layers: LayerSpec) -> ModelSpec:
    return ModelSpec("test", "llama", layers, context=8192, vocab=96, hidden=48, ffn=64)


SMOL = model(*[LAYER] * 30)


def plan(text: str, spec: ModelSpec = SMOL) -> Plan:
    return Recipe.parse(text).resolve(spec)


def check_format(page: PageFormat) -> None:
    """Planes are aligned, apart from each other, and fill the page."""
    assert page.nbytes % 64 == 0
    end = 0
    for slot in page.slots:
        assert slot.offset == end, "planes follow one another"
        assert slot.offset % 64 == 0
        items = slot.heads * slot.units
        for size in slot.plane.shape:
            items *= size
        assert slot.nbytes == items * ITEM_BYTES[slot.plane.dtype]
        assert slot.units * slot.plane.tokens == page.tokens
        end = slot.offset + -(-slot.nbytes // 64) * 64
    assert end == page.nbytes


def test_align_rounds_up_to_cache_lines() -> None:
    assert [align(n) for n in (0, 1, 63, 64, 65, 128)] == [0, 64, 64, 64, 128, 128]


# Planes of one layer with 3 KV heads of 64 channels, in bytes of a page of 32 tokens:
# K then V; codes, then scales, then minima; each rounded up to a multiple of 64.
BY_HAND = {
    "fp32": [3 * 32 * 64 * 4] * 2,
    "fp16": [3 * 32 * 64 * 2] * 2,
    "bf16": [3 * 32 * 64 * 2] * 2,
    "int8": [3 * 32 * 64, 3 * 32 * 2] * 2,
    "int8:range=asym": [3 * 32 * 64, 3 * 32 * 2, 3 * 32 * 2] * 2,
    "int8:group=16": [3 * 32 * 64, 3 * 32 * 4 * 2] * 2,
    "int4": [3 * 32 * 32, 3 * 32 * 2 * 2, 3 * 32 * 2 * 2] * 2,
    "int4:range=sym": [3 * 32 * 32, 3 * 32 * 2 * 2] * 2,
    "int4:group=64": [3 * 32 * 32, 3 * 32 * 2, 3 * 32 * 2] * 2,
    "int8/int4": [3 * 32 * 64, 3 * 32 * 2, 3 * 32 * 32, 3 * 32 * 2 * 2, 3 * 32 * 2 * 2],
    "int8+page:1": [3 * 64, 64, 3 * 64, 64],  # 6 bytes of scales take a whole line
    "perchannel:8": [3 * 4 * 8 * 64, 3 * 4 * 64 * 4, 3 * 4 * 64 * 4] * 2,
}


@pytest.mark.parametrize("text", BY_HAND)
def test_pages_are_laid_out_as_counted_by_hand(text: str) -> None:
    (group,) = plan(text, model(LAYER)).groups
    sizes = [-(-n // 64) * 64 for n in BY_HAND[text]]
    assert [s.offset for s in group.main.slots] == [sum(sizes[:i]) for i in range(len(sizes))]
    assert group.main.nbytes == sum(sizes)
    check_format(group.main)
    many = plan(text).groups[0].main
    assert many.nbytes == 30 * sum(sizes)
    check_format(many)


def test_planes_of_a_layer_are_found_by_stream() -> None:
    (group,) = plan("int8@0+int4").groups
    assert [s.name for s in group.main.of(0, "k")] == ["code", "scale"]
    assert [s.name for s in group.main.of(1, "v")] == ["code", "scale", "low"]
    assert [s.layer for s in group.main.of(7, "v")] == [7, 7, 7]


def test_tail_pages_hold_only_streams_that_wait() -> None:
    (group,) = plan("perchannel/int8", model(LAYER)).groups
    assert group.tail is not None
    assert [(s.stream, s.nbytes) for s in group.tail.slots] == [("k", 3 * 32 * 64 * 2)]
    check_format(group.tail)
    assert plan("int8").groups[0].tail is None


def test_an_evicting_head_has_pages_of_its_own() -> None:
    groups = plan("int8+heavy:20", model(LAYER)).groups
    assert [g.head for g in groups] == [0, 1, 2]
    for group in groups:
        assert [s.heads for s in group.main.slots] == [1] * 4
        assert group.main.nbytes == 2 * (32 * 64 + 64)


def test_bytes_of_smollm2() -> None:
    """30 layers of 3 KV heads and 64 channels: 23,040 bytes a token at fp16."""
    fp16 = kv_bytes(plan("fp16"), 4096)
    assert fp16.pages == 4096 * 23_040
    for text, share in (("int8", 0.55), ("int4", 0.33), ("int8/int4", 0.45), ("bf16", 1.01)):
        assert kv_bytes(plan(text), 4096).total <= share * fp16.total, text
    assert kv_bytes(plan("fp32"), 4096).pages == 2 * fp16.pages
    assert kv_bytes(plan("int8"), 4096).pages == 4096 * 30 * 2 * 3 * (64 + 2)
    assert kv_bytes(plan("int4"), 4096).pages == 4096 * 30 * 2 * 3 * (32 + 4 + 4)


def test_mixed_head_dims_and_latent_rows() -> None:
    wide = replace(LAYER, k_dim=96, v_dim=64, rope=None)
    (group,) = plan("fp16", model(wide)).groups
    assert [s.nbytes for s in group.main.slots] == [3 * 32 * 96 * 2, 3 * 32 * 64 * 2]
    latent = LayerSpec("latent", 16, 1, 576, 512)
    (group,) = plan("fp16", model(latent)).groups
    assert [(s.stream, s.nbytes) for s in group.main.slots] == [("k", 32 * 576 * 2)]
    assert kv_bytes(plan("fp16", model(*[latent] * 61)), 32).pages == 32 * 70_272


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["fp32", "fp16", "int8", "int8:group=8", "int4", "perchannel:4", "perchannel"]),
    st.sampled_from(["fp16", "int8:range=asym", "int4:range=sym", "perchannel:8,residual=0"]),
    st.sampled_from([1, 2, 3, 7, 8, 16, 24, 32, 100, 4096]),
    st.integers(1, 5),
    st.sampled_from([8, 16, 64, 80, 96, 128, 256]),
)
def test_any_page_is_aligned_and_gapless(k: str, v: str, page: int, heads: int, dim: int) -> None:
    layer = LayerSpec("full", heads * 2, heads, dim, dim)
    try:
        found = plan(f"{k}/{v}+page:{page}", model(layer, layer))
    except RecipeError:
        return
    for group in found.groups:
        check_format(group.main)
        if group.tail is not None:
            check_format(group.tail)
        assert group.main.tokens == page
