"""Rope from the parameters that Hugging Face configurations give (``rope_parameters``)."""

from __future__ import annotations

import math

from kvik.spec.fields import Fields
from kvik.spec.model import Rope


def config_rope(params: Fields, *, dim: int, theta: float, context: int) -> Rope:
    """Rotary embedding of ``dim`` channels; ``theta`` and ``context`` fill absent fields."""
    kind = params.text("rope_type", params.text("type", "default"))
    params.refuse("partial_rotary_factor", 1)
    theta = params.number("rope_theta", theta)
    if kind == "default":
        return Rope(dim, theta)
    if kind == "linear":
        return Rope(dim, theta, linear=params.number("factor"))
    if kind == "llama3":
        return Rope(dim, theta, factors=_llama3_factors(params, dim, theta, context))
    raise params.wrong(
        "rope_type" if "rope_type" in params else "type", "default, linear or llama3"
    )


def _llama3_factors(params: Fields, dim: int, theta: float, context: int) -> tuple[float, ...]:
    """What divides the frequency of each pair in Llama 3.1 (Llama team, arXiv 2407.21783).

    Waves shorter than the old context over ``high_freq_factor`` keep their frequency, those
    longer than it over ``low_freq_factor`` are slowed by ``factor``; between, a blend of both.
    """
    factor = params.number("factor")
    low, high = params.number("low_freq_factor"), params.number("high_freq_factor")
    old = params.number("original_max_position_embeddings", context)
    if low >= high:
        raise params.wrong("low_freq_factor", f"below high_freq_factor ({high:g})")

    def divisor(frequency: float) -> float:
        wavelength = 2 * math.pi / frequency
        if wavelength < old / high:
            return 1.0
        if wavelength > old / low:
            return factor
        blend = (old / wavelength - low) / (high - low)
        return 1.0 / ((1.0 - blend) / factor + blend)

    return tuple(divisor(frequency) for frequency in Rope(dim, theta).frequencies())
