"""Models with random weights, for tests that need the arithmetic and not the language."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kvik.models.decoder import Decoder
from kvik.models.model import Model
from kvik.spec import ModelSpec


def random_model(spec: ModelSpec, seed: int = 0, dtype: torch.dtype = torch.float32) -> Model:
    """A model of this shape; the same weights for the same seed, rounded to ``dtype``.

    Activations keep unit variance, so scores spread over several nats (attention is neither
    uniform nor one-hot) and logits have a standard deviation of about 3: a mistake shows.
    """
    generator = torch.Generator().manual_seed(seed)

    def take(name: str, shape: tuple[int, ...]) -> Tensor:
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        return _scaled(name, noise).to(dtype)

    return Model(spec.name, spec, Decoder.build(take, spec))


def _scaled(name: str, noise: Tensor) -> Tensor:
    if name.endswith("norm.weight"):
        return 1.0 + 0.1 * noise
    if name.endswith(".bias"):
        return 0.1 * noise
    gain = 3.0 if name in ("embed.weight", "lm_head.weight") else 2.0 if ".q_proj." in name else 1.0
    return noise * (gain / math.sqrt(noise.shape[-1]))
