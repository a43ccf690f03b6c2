"""K and V in 4 bits, a scale for a piece of a token or for a piece of a channel: what it costs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kvik.evaluate.inspect.attention import blocks
from kvik.ops import Scoring, angles, rotate
from kvik.spec.model import LayerSpec
from kvik.stages.ints import Int

WAYS = ("token", "channel")
GROUP = 32


def group_of(dim: int) -> int:
    """Numbers that share a scale, along tokens or channels: 32, or what divides the head dim."""
    return math.gcd(GROUP, dim)


def coded(x: Tensor, way: str) -> Tensor:
    """``x`` [H, T, D] after kvik's own int4 codes.

    ``token``: a scale for each group of channels of one token, as kvik's ``int4`` has it.
    ``channel``: a scale for a group of as many tokens of one channel, as KIVI has it for K. Both
    take the same bytes. Tokens after the last whole group stay as they are.
    """
    group = group_of(x.shape[-1])
    whole = x.shape[1] // group * group
    codec, part = Int(bits=4, group=group), x[:, :whole].float()
    if way == "channel":
        part = part.mT.contiguous()
    part = codec.decode(codec.encode(part))
    if way == "channel":
        part = part.mT
    return torch.cat([part.to(x.dtype), x[:, whole:]], 1)


def output_errors(
    q: Tensor, k: Tensor, k_rope: Tensor, v: Tensor, spec: LayerSpec
) -> dict[str, Tensor]:
    """Squared error over energy [H] of the attention output when only K or only V is coded.

    ``q`` [H, G, T, D] is rotated; ``k`` is before RoPE and ``k_rope`` after it [H, T, D], ``v`` is
    [H, T, Dv]. The keys are ``k_token`` and ``k_channel`` as a cache holds them, after RoPE, and
    ``k_channel_before``, coded before RoPE and then rotated (KVQuant); the values are ``v_token``
    and ``v_channel``. Queries from the middle of the text on are counted. Empty where the head
    dims are odd, which 4-bit codes do not fit.
    """
    if min(group_of(k.shape[-1]), group_of(v.shape[-1])) == 1:
        return {}
    keys = {f"k_{way}": coded(k_rope, way) for way in WAYS}
    keys["k_channel_before"] = _turned(coded(k, "channel"), spec)
    values = {f"v_{way}": coded(v, way) for way in WAYS}
    scoring, middle = Scoring(spec.scale, spec.softcap), q.shape[2] // 2
    wrong = {name: torch.zeros(len(k), dtype=torch.float64) for name in (*keys, *values)}
    energy = torch.zeros(len(k), dtype=torch.float64)
    others = [blocks(q, x, spec, scoring, middle) for x in keys.values()]
    for exact, *coarse in zip(blocks(q, k_rope, spec, scoring, middle), *others, strict=True):
        seen = slice(exact.low, exact.low + exact.weights.shape[-1])
        out = _mixed(exact.weights, v[:, seen])
        energy += _energy(out)
        for name, block in zip(keys, coarse, strict=True):
            wrong[name] += _energy(_mixed(block.weights, v[:, seen]) - out)
        for name, x in values.items():
            wrong[name] += _energy(_mixed(exact.weights, x[:, seen]) - out)
    energy = energy.clamp(min=torch.finfo(torch.float64).tiny)
    return {name: total / energy for name, total in wrong.items()}


def _mixed(weights: Tensor, v: Tensor) -> Tensor:
    """[H, G * n, Dv] of weights [H, G, n, E] and values [H, E, Dv]."""
    return weights.flatten(1, 2) @ v


def _energy(x: Tensor) -> Tensor:
    return x.square().sum((1, 2), dtype=torch.float64)


def _turned(x: Tensor, spec: LayerSpec) -> Tensor:
    if spec.rope is None:
        return x
    return rotate(x, spec.rope, *angles(spec.rope, torch.arange(x.shape[1]), x.dtype))
