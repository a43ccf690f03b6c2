"""The next tokens of a batch, from its logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from kvik.engine.job import Branch
from kvik.engine.sampler import logprobs, sample
from kvik.errors import KvikError

Chosen = int | KvikError
Alternatives = tuple[float, tuple[tuple[int, float], ...]]


def choose(rows: Tensor, branches: Sequence[Branch]) -> list[Chosen]:
    """A token for each branch from its row of ``rows`` [len(branches), vocab].

    A row that allows none gives its error, so that one sequence cannot end the others', nor bring
    every step to a halt. Only a lack of memory is nobody's own and is raised.
    """
    # The likeliest tokens of all rows at once: the same that `sample` takes, ties included.
    table = rows.detach().float().cpu().numpy()
    top = table.argmax(1)
    finite = np.isfinite(table[np.arange(len(top)), top])
    chosen: list[Chosen] = top.tolist()
    if finite.all() and all([branch.job.greedy for branch in branches]):
        return chosen
    for i, (branch, fine) in enumerate(zip(branches, finite.tolist(), strict=True)):
        if fine and branch.job.greedy:
            continue
        request = branch.job.request
        try:
            chosen[i] = sample(
                rows[i],
                request.sampling,
                history=branch.text.ids,
                sample=request.sample + branch.index,
                position=branch.known,
            )
        except MemoryError:
            raise
        except Exception as error:
            chosen[i] = as_refusal(error)
    return chosen


def as_refusal(error: Exception) -> KvikError:
    """What one sequence ends with when its own numbers or options were to blame."""
    if isinstance(error, KvikError):
        return error
    return KvikError(f"its next token could not be chosen: {type(error).__name__}: {error}")


def alternatives(row: Tensor, token: int, count: int) -> Alternatives:
    """The log-probability of ``token`` and the ``count`` likeliest tokens with theirs."""
    values = logprobs(row)
    count = min(count, values.size)
    if not count:
        return float(values[token]), ()
    best = np.argpartition(-values, count - 1)[:count]
    best = best[np.lexsort((best, -values[best]))]
    return float(values[token]), tuple((int(i), float(values[i])) for i in best)
