"""Which greedy choices are clear."""

from __future__ import annotations

from torch import Tensor


def clear_choices(logits: Tensor, off: float) -> Tensor:
    """Rows [N] bool of logits [N, vocab] whose first token stays first when all move by ``off``.

    Where two tokens are nearer than that, which of them is first is the rounding's affair.
    """
    top = logits.topk(2, -1).values
    return top[:, 0] - top[:, 1] > 2 * off
