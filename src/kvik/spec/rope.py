"""Rope from the parameters that Hugging Face configurations give (``rope_parameters``)."""

from __future__ import annotations

import math

from kvik.spec.fields import Fields
from kvik.spec.model import Rope


def config_rope(
    params: Fields, *, dim: int, theta: float, context: int, old: int | None = None
) -> Rope:
    """Rotary embedding of ``dim`` channels; ``theta`` and ``context`` fill absent fields.

    ``old`` is the length that scaling extended, where the configuration says it outside ``params``
    too: then what it says there holds.
    """
    kind = params.text("rope_type", params.text("type", "default"))
    theta = params.number("rope_theta", theta)
    if kind == "default":
        return Rope(dim, theta)
    if kind == "linear":
        return Rope(dim, theta, linear=params.number("factor"))
    if kind == "llama3":
        return Rope(
            dim, theta, factors=_llama3_factors(params, dim, theta, old or _old(params, context))
        )
    if kind in ("longrope", "su"):
        return _longrope(params, dim, theta, context, old or _old(params, context))
    raise params.wrong(
        "rope_type" if "rope_type" in params else "type", "default, linear, llama3 or longrope"
    )


def rope_params(fields: Fields) -> Fields:
    """What a configuration says of its rotary embedding, in either of two fields."""
    return fields.sub("rope_scaling" if "rope_scaling" in fields else "rope_parameters")


def long_rope(
    dim: int,
    theta: float,
    *,
    long: tuple[float, ...],
    short: tuple[float, ...],
    context: int,
    old: int,
    attention_factor: float,
) -> Rope:
    """LongRoPE (arXiv 2402.13753) of a model of ``context`` tokens, extended from ``old``."""
    if context <= old:
        return Rope(dim, theta, factors=short, attention_factor=attention_factor)
    return Rope(
        dim,
        theta,
        factors=long,
        attention_factor=attention_factor,
        short=short,
        short_context=old,
    )


def long_attention_factor(factor: float, old: int) -> float:
    """What LongRoPE multiplies cos and sin by, where nothing says it."""
    return math.sqrt(1 + math.log(factor) / math.log(old)) if factor > 1 and old > 1 else 1.0


def _old(params: Fields, context: int) -> int:
    return params.integer("original_max_position_embeddings", context)


def _longrope(params: Fields, dim: int, theta: float, context: int, old: int) -> Rope:
    scale = long_attention_factor(params.number("factor", context / old), old)
    return long_rope(
        dim,
        theta,
        long=params.positive("long_factor"),
        short=params.positive("short_factor"),
        context=context,
        old=old,
        attention_factor=params.number("attention_factor", scale),
    )


def _llama3_factors(params: Fields, dim: int, theta: float, old: int) -> tuple[float, ...]:
    """What divides the frequency of each pair in Llama 3.1 (Llama team, arXiv 2407.21783).

    Waves shorter than the old context over ``high_freq_factor`` keep their frequency, those
    longer than it over ``low_freq_factor`` are slowed by ``factor``; between, a blend of both.
    """
    factor = params.number("factor")
    low, high = params.number("low_freq_factor"), params.number("high_freq_factor")
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
