"""What a model's attention stores, layer by layer.

Legend used in every docstring: T tokens, H KV heads, G queries per KV head, D head dim.
Nothing here imports torch: the planner answers from these classes alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

LayerKind = Literal["full", "sliding", "chunked", "latent", "state", "shared"]


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of one layer (Su et al., arXiv 2104.09864).

    Rotates channels ``offset .. offset+dim`` of a head; the rest pass through. ``half`` pairs
    channel i with i + dim/2 (Llama, Qwen, Gemma), ``interleaved`` pairs 2i with 2i + 1.
    ``factors`` divide the frequency of each pair (Llama-3 and LongRoPE scaling), ``linear``
    divides the position, ``attention_factor`` multiplies cos and sin (YaRN).
    """

    dim: int
    theta: float
    layout: Literal["half", "interleaved"] = "half"
    offset: int = 0
    linear: float = 1.0
    factors: tuple[float, ...] = ()
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.dim <= 0 or self.dim % 2:
            raise ValueError(f"a rotary dimension must be even and positive, not {self.dim}")
        if self.factors and len(self.factors) != self.dim // 2:
            raise ValueError(f"{len(self.factors)} rope factors for {self.dim // 2} pairs")

    def frequencies(self) -> list[float]:
        """Radians per position of each channel pair, in float64."""
        factors = self.factors or (1.0,) * (self.dim // 2)
        return [
            math.pow(self.theta, -2.0 * i / self.dim) / (self.linear * f)
            for i, f in enumerate(factors)
        ]


@dataclass(frozen=True)
class LayerSpec:
    """What one attention layer caches for each token.

    ``window`` counts the keys a query sees, itself included. A ``latent`` layer (MLA,
    arXiv 2405.04434) stores one row of ``k_dim`` for all heads and its V is the first
    ``v_dim`` channels of that row. A ``shared`` layer reads the cache of layer ``source``.
    A ``state`` layer keeps ``state_shape`` float32 values per sequence and no tokens.
    ``scale`` multiplies the scores (``k_dim ** -0.5`` unless the model says otherwise);
    ``softcap`` bounds them by ``softcap * tanh(score / softcap)``.
    """

    kind: LayerKind
    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None
    rope: Rope | None = None
    scale: float = 0.0
    softcap: float | None = None
    source: int | None = None
    state_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind != "state":
            if min(self.heads, self.kv_heads, self.k_dim, self.v_dim) <= 0:
                raise ValueError("heads and head dimensions must be positive")
            if self.heads % self.kv_heads:
                raise ValueError(f"{self.heads} query heads over {self.kv_heads} KV heads")
        if self.kind in ("sliding", "chunked") and not self.window:
            raise ValueError(f"a {self.kind} layer needs a window")
        if self.scale == 0.0:
            object.__setattr__(self, "scale", self.k_dim**-0.5 if self.k_dim else 1.0)

    @property
    def group(self) -> int:
        """G, the query heads that share one KV head."""
        return self.heads // self.kv_heads

    @property
    def caches_tokens(self) -> bool:
        """Whether the layer stores K/V of its own."""
        return self.kind not in ("state", "shared")


@dataclass(frozen=True)
class ModelSpec:
    """One decoder model: its caching layers and what the decoder needs to run it.

    ``context`` is the trained context length in tokens. ``embed_scale`` multiplies the
    embeddings; ``qk_norm`` puts an RMS norm on q and k before RoPE; ``post_norms`` puts one
    after attention and feed-forward (Gemma).
    """

    name: str
    family: str
    layers: tuple[LayerSpec, ...]
    context: int
    vocab: int
    hidden: int
    ffn: int
    norm_eps: float = 1e-5
    activation: Literal["silu", "gelu_tanh"] = "silu"
    tied: bool = True
    embed_scale: float = 1.0
    qk_norm: bool = False
    post_norms: bool = False
    attention_bias: bool = False
    final_softcap: float | None = None

    @classmethod
    def load(cls, path: str | Path) -> ModelSpec:
        """Read a .gguf file, a config.json, or a folder with one; SpecError on any fault."""
        from kvik.spec.load import load_spec

        return load_spec(path)
