"""Models that this needs only the shape of."""

from __future__ import annotations

from kvik.spec.model import LayerSpec, ModelSpec


def _full(name: str, layers: int, heads: int, kv_heads: int, context: int, ffn: int) -> ModelSpec:
    """A model with head dimension 128 and full attention in every layer."""
    layer = LayerSpec("full", heads, kv_heads, 128, 128)
    hidden = 128 * heads
    return ModelSpec(
        name, "shape", (layer,) * layers, context, vocab=32_000, hidden=hidden, ffn=ffn
    )


# opt-13b is the model of the PagedAttention paper's Figure 2 (MHA, 2,048 tokens).
SHAPES = {
    spec.name: spec
    for spec in (
        _full("opt-13b", layers=40, heads=40, kv_heads=40, context=2048, ffn=20_480),
        _full("llama-3-8b", layers=32, heads=32, kv_heads=8, context=8192, ffn=14_336),
        _full("llama-3-70b", layers=80, heads=64, kv_heads=8, context=8192, ffn=28_672),
    )
}
