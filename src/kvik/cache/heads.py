"""Attention over KV heads whose tokens a policy chooses: head by head, event by event."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kvik.cache.evicting import EvictingStep
from kvik.ops import Scoring, angles, attend, mass, rotate
from kvik.recipe.codec import Stream


def attend_heads(
    heads: list[EvictingStep],
    q: Tensor,
    positions: Tensor,
    scoring: Scoring,
    new: dict[Stream, Tensor],
) -> tuple[Tensor, Tensor]:
    """Output [H, G, n, Dv] and log-sum-exp [H, G, n] of q [H, G, n, D] at ``positions`` [n].

    The step's own tokens, ``new`` [H, n, D], join segment by segment between the policy's events.
    """
    outs, lses = [], []
    for h, step in enumerate(heads):
        step.load()
        parts = []
        for low, high in step.segments():
            rows = slice(low - step.start, high - step.start)
            step.append({s: x[h : h + 1, rows].float() for s, x in new.items()}, low, high)
            keys = step.keys()
            keys = replace(keys, k=keys.k.to(q.dtype), v=keys.v.to(q.dtype))
            rope = step.layer.spec.rope
            if step.layer.k.pre_rope and rope is not None:
                turn = angles(rope, keys.position, q.dtype)
                keys = replace(keys, k=rotate(keys.k, rope, *turn))
            query, at = q[h : h + 1, :, rows], positions[rows]
            parts.append(attend(query, at, keys, scoring))
            if "mass" in step.policy.signals:
                step.observe(mass(query, at, keys, scoring, parts[-1][1])[0])
        step.store()
        outs.append(torch.cat([o for o, _ in parts], 2))
        lses.append(torch.cat([s for _, s in parts], 2))
    return torch.cat(outs), torch.cat(lses)
