"""Attention over explicit entries by whichever backend takes it: native, else the reference."""

from __future__ import annotations

from torch import Tensor

from kvik.ops import native_attention, reference
from kvik.ops.reference import Keys, Scoring


def attend(
    q: Tensor, positions: Tensor, keys: Keys, scoring: Scoring, q_sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Output [H, G, n, Dv] and log-sum-exp [H, G, n]; see :func:`kvik.ops.reference.attend`."""
    if native_attention.can_attend(q, keys):
        return native_attention.attend_entries(q, positions, keys, scoring, q_sinks)
    return reference.attend(q, positions, keys, scoring, q_sinks)


def mass(
    q: Tensor,
    positions: Tensor,
    keys: Keys,
    scoring: Scoring,
    lse: Tensor,
    q_sinks: Tensor | None = None,
) -> Tensor:
    """Attention that each entry received [H, E]; see :func:`kvik.ops.reference.mass`."""
    if native_attention.can_attend(q, keys):
        return native_attention.mass_of_entries(q, positions, keys, scoring, lse, q_sinks)
    return reference.mass(q, positions, keys, scoring, lse, q_sinks)
