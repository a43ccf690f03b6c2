"""What a model's attention stores, layer by layer.

Legend used in every docstring: T tokens, H KV heads, G queries per KV head, D head dim.
Nothing here imports torch: the planner answers from these classes alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from kvik.spec.params import Params
from kvik.spec.stored import Stored

LayerKind = Literal["full", "sliding", "chunked", "latent", "state", "shared"]


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of one layer (Su et al., arXiv 2104.09864).

    Rotates channels ``offset .. offset+dim`` of a head; the rest pass through. ``half`` pairs
    channel i with i + dim/2 (Llama, Qwen, Gemma), ``interleaved`` pairs 2i with 2i + 1.
    ``factors`` divide the frequency of each pair (Llama-3 and LongRoPE scaling), ``linear``
    divides the position, ``attention_factor`` multiplies cos and sin (YaRN, LongRoPE).
    LongRoPE (arXiv 2402.13753) has ``short`` factors too, for texts of at most ``short_context``
    tokens; which of both hold is settled when a model is loaded (``ModelSpec.within``), as a key
    that is stored must not depend on what follows it.
    """

    dim: int
    theta: float
    layout: Literal["half", "interleaved"] = "half"
    offset: int = 0
    linear: float = 1.0
    factors: tuple[float, ...] = ()
    attention_factor: float = 1.0
    short: tuple[float, ...] = ()
    short_context: int = 0

    def __post_init__(self) -> None:
        if self.dim <= 0 or self.dim % 2:
            raise ValueError(f"a rotary dimension must be even and positive, not {self.dim}")
        for factors in (self.factors, self.short):
            if factors and len(factors) != self.dim // 2:
                raise ValueError(f"{len(factors)} rope factors for {self.dim // 2} pairs")

    def within(self, tokens: int) -> Rope:
        """The embedding for texts of at most ``tokens`` tokens, settled."""
        if not self.short:
            return self
        factors = self.short if tokens <= self.short_context else self.factors
        return replace(self, factors=factors, short=(), short_context=0)

    def frequencies(self) -> list[float]:
        """Radians per position of each channel pair, in float64."""
        factors = self.factors or (1.0,) * (self.dim // 2)
        return [
            math.pow(self.theta, -2.0 * i / self.dim) / (self.linear * f)
            for i, f in enumerate(factors)
        ]


@dataclass(frozen=True)
class Extra:
    """A side stream of a layer: one row of ``dim`` values for every ``ratio`` tokens.

    One row serves all heads, so every tensor-parallel rank holds all of it. Examples: the keys
    of DeepSeek-V3.2's indexer (``dim`` 128, ``ratio`` 1, arXiv 2512.02556), the compressed rows
    of DeepSeek-V4 (``dim`` 512, ``ratio`` 4 or 128). The values take the dtype of the cache.
    """

    name: str
    dim: int
    ratio: int = 1

    def __post_init__(self) -> None:
        if self.dim <= 0 or self.ratio <= 0:
            raise ValueError(f"the stream {self.name!r} needs a dimension and a ratio above zero")

    def rows(self, tokens: int) -> int:
        """Rows stored after ``tokens`` tokens: whole groups of ``ratio``."""
        return tokens // self.ratio


@dataclass(frozen=True)
class StatePart:
    """A fixed array that a layer keeps for each sequence, whatever its length.

    ``name`` says what it is: ``recurrent`` (the matrix of an SSM, delta net or linear attention),
    ``conv`` (the last kernel - 1 inputs of a short convolution, shape [columns, channels]),
    ``cross`` (K and V of an encoder's output) or ``compressor`` (DeepSeek-V4's open groups).
    ``item_bytes`` is what vLLM stores (mostly recurrent 4, conv 2); engines differ in it.
    Of the channels of Mamba-2's convolution ``groups`` times ``group_width`` serve all heads of a
    group: a device needs those of every group that one of its heads is in.
    """

    name: Literal["recurrent", "conv", "cross", "compressor"]
    shape: tuple[int, ...]
    item_bytes: int
    groups: int = 0
    group_width: int = 0

    def __post_init__(self) -> None:
        if min(self.shape, default=0) <= 0 or self.item_bytes <= 0:
            raise ValueError(f"the state {self.name!r} has the impossible shape {self.shape}")

    @property
    def nbytes(self) -> int:
        """Bytes for one sequence."""
        return math.prod(self.shape) * self.item_bytes


@dataclass(frozen=True)
class LayerSpec:
    """What one layer caches.

    Three independent things: its K/V rows (``kind``, ``kv_heads``, ``k_dim``, ``v_dim``,
    ``window``), side streams (``extra``) and fixed arrays (``states``). A parallel hybrid such
    as Falcon-H1 is a ``full`` layer with states; Whisper's decoder too (``cross``).

    ``window`` counts the keys a query sees, itself included. ``chunked`` layers (Llama 4) see
    back to the last multiple of ``window``. A ``latent`` layer (MLA, arXiv 2405.04434) stores one
    row of ``k_dim`` for all heads and its V is the first ``v_dim`` channels of that row;
    ``rope_dim`` of its channels carry the position, ``expanded`` are the K and V dimensions of
    each of its ``heads`` where an engine stores those instead of the row. A latent layer with a
    ``window`` (DeepSeek-V4) keeps the last ``window`` rows only. A ``shared`` layer reads the
    cache of layer ``source`` and stores nothing. A ``state`` layer keeps no tokens: its
    ``states``, or ``state_shape`` float32 values where kvik itself runs it; neither where it is
    a feed-forward block that counts as a layer (Nemotron-H).
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
    extra: tuple[Extra, ...] = ()
    states: tuple[StatePart, ...] = ()
    rope_dim: int = 0
    expanded: tuple[int, int] | None = None

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

    @property
    def row_values(self) -> int:
        """Values that one token adds to the layer's K/V rows, all KV heads; 0 where it has none."""
        if not self.caches_tokens:
            return 0
        return self.k_dim if self.kind == "latent" else self.kv_heads * (self.k_dim + self.v_dim)

    @property
    def state_bytes(self) -> int:
        """Fixed bytes for each sequence."""
        own = 4 * math.prod(self.state_shape) if self.state_shape else 0
        return own + sum(part.nbytes for part in self.states)


@dataclass(frozen=True)
class Experts:
    """Feed-forward networks of which each token uses a few (arXiv 2401.04088).

    A router gives every one of ``count`` experts of width ``ffn`` a probability; the ``used`` most
    probable are added, weighted by it, or by its share of their sum where ``normed``. The layers
    in ``dense`` have one network of the model's own ``ffn`` instead.
    """

    count: int
    used: int
    ffn: int
    normed: bool = True
    dense: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.used <= self.count:
            raise ValueError(f"{self.used} experts a token of {self.count}")


@dataclass(frozen=True)
class ModelSpec:
    """One decoder model: its caching layers and what the decoder needs to run it.

    ``context`` is the trained context length in tokens. ``embed_scale`` multiplies the
    embeddings; ``qk_norm`` puts an RMS norm on q and k before RoPE; ``post_norms`` puts one
    after attention and feed-forward (Gemma). ``attention_bias`` holds the letters of the
    projections that add a bias, of q, k, v and o. ``experts`` is None where all layers have one
    dense feed-forward network.

    ``unrunnable`` is empty, or says why kvik's own decoder cannot run this model; then what only
    the decoder needs (``rope``, ``norm_eps``, ``activation``, ...) holds defaults, and the rest
    is enough to plan with. ``ffn`` is 0 where no dense feed-forward width is known. ``params`` is
    None where the parameters cannot be counted. ``source`` says where the sizes were read.
    ``stored`` is how its weights lie in their files.
    ``unwindowed`` names the engines that apply none of this model's windows and so keep every
    token in all of its layers.
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
    attention_bias: str = ""
    final_softcap: float | None = None
    experts: Experts | None = None
    params: Params | None = None
    unrunnable: str = ""
    source: str = ""
    unwindowed: tuple[str, ...] = ()
    stored: Stored = field(default_factory=Stored)

    def has_experts(self, layer: int) -> bool:
        """Whether the feed-forward network of that layer is a mixture."""
        return self.experts is not None and layer not in self.experts.dense

    def within(self, tokens: int) -> ModelSpec:
        """This model for texts of at most ``tokens`` tokens.

        The same but for LongRoPE: short factors hold up to the length they were made for, and the
        model's context ends there; the long ones beyond.
        """
        lengths = {y.rope.short_context for y in self.layers if y.rope and y.rope.short}
        if not lengths:
            return self
        layers = tuple(replace(y, rope=y.rope and y.rope.within(tokens)) for y in self.layers)
        short = tokens <= max(lengths)
        return replace(self, layers=layers, context=max(lengths) if short else self.context)

    @classmethod
    def load(cls, path: str | Path) -> ModelSpec:
        """Any model to plan with: a .gguf file, config.json, folder or built-in name.

        SpecError on any fault. ``load_spec`` reads only what the decoder can run.
        """
        from kvik.spec.load import find_spec

        return find_spec(path)
