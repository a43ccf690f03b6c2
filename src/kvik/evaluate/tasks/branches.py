"""Many prompts of one cache, their common beginnings computed once.

Forks share pages and see what a cache of their own would show them (the position law), so sharing
changes no number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from kvik.engine.session import Session

Visit = tuple[int, "Session", "Tensor"]


def visit(session: Session, prompts: Sequence[Sequence[int]], chunk: int) -> Iterator[Visit]:
    """Each prompt's index, a session that holds just it, and its last logits ``[1, vocab]``.

    The session is the visitor's until the next one is asked for. Prompts that are equal, or begin
    with another whole one, are fed again from where they part.
    """
    order = sorted(range(len(prompts)), key=lambda i: list(prompts[i]))
    yield from _walk(session, prompts, order, 0, chunk)


def _walk(
    session: Session, prompts: Sequence[Sequence[int]], order: list[int], done: int, chunk: int
) -> Iterator[Visit]:
    """``order`` holds prompts, sorted, that share the first ``done`` tokens: those of session."""
    if len(order) == 1:
        index = order[0]
        yield index, session, session.feed(prompts[index][done:], chunk=chunk)
        return
    # Sorted, the first and the last differ the most. One token at least is left for each, whose
    # step gives its logits.
    first, last = prompts[order[0]], prompts[order[-1]]
    most = min(len(prompts[i]) for i in order) - 1
    common = done
    while common < most and first[common] == last[common]:
        common += 1
    if common > done:
        session.feed(first[done:common], chunk=chunk)
    parts = [list(part) for _, part in groupby(order, key=lambda i: prompts[i][common])]
    if len(parts) == 1:  # equal up to a prompt's last token
        parts = [[index] for index in order]
    for number, part in enumerate(parts):
        whole = number + 1 < len(parts)
        branch = session.fork() if whole else session
        try:
            yield from _walk(branch, prompts, part, common, chunk)
        finally:
            if whole:
                branch.close()
