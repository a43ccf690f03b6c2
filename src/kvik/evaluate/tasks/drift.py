"""Whether errors add up: the dense cache writes freely, and KL is followed step by step."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvik.evaluate.metrics import Rows, log_softmax, score
from kvik.evaluate.tasks.base import REFERENCE, Material, Subject, Unit, Values
from kvik.evaluate.tasks.stream import Streamed, row_values


class Drift(Streamed):
    """A continuation that the dense model samples; every cache is fed it one token a step.

    The slope of KL against the step tells whether the error grows.
    """

    name = "drift"
    meaning = "KL by step of a continuation that the dense cache wrote: does the error grow"
    contexts = (512,)
    scored = 256

    def tokens(self, unit: Unit) -> int:
        return int(unit.where["context"]) + int(unit.where["scored"])

    def check(self, material: Material, unit: Unit) -> None:
        self._context(material, unit)

    def _context(self, material: Material, unit: Unit) -> list[int]:
        room = unit.where["context"] - len(material.head)
        return [*material.head, *material.excerpt(max(room, 1), unit.where["sample"])]

    def reference(self, subject: Subject, unit: Unit) -> tuple[Values, Any]:
        context = self._context(subject.material, unit)
        draw = subject.material.draw(unit)
        steps, vocab = unit.where["scored"], subject.model.spec.vocab
        logits, tokens = np.empty((steps, vocab), dtype=np.float32), []
        session = subject.session(REFERENCE, self.tokens(unit))
        try:
            row = session.feed(context, chunk=subject.chunk).numpy()
            held = session.kv_bytes
            for step in range(steps):
                logits[step] = row[-1]
                tokens.append(_sample(row, draw.random()))
                if step + 1 < steps:
                    row = session.feed(tokens[-1:]).numpy()
        finally:
            session.close()
        rows = score(logits, logits, np.asarray(tokens))
        return row_values(rows) | {"kv_bytes": held}, (tokens, logits)

    def measure(self, subject: Subject, unit: Unit, recipe: str, trace: Any) -> Values:
        tokens, logits = trace
        context = self._context(subject.material, unit)
        session = subject.session(recipe, self.tokens(unit))
        parts = []
        try:
            row = session.feed(context, chunk=subject.chunk).numpy()
            held = session.kv_bytes
            for step, token in enumerate(tokens):
                parts.append(score(logits[step : step + 1], row[-1:], np.asarray([token])))
                if step + 1 < len(tokens):
                    row = session.feed([token]).numpy()
        finally:
            session.close()
        return row_values(Rows.join(parts)) | {"kv_bytes": held}


def _sample(row: Any, uniform: float) -> int:
    """A token drawn at temperature 1 from logits ``[1, vocab]``."""
    total = np.exp(log_softmax(row)[-1]).cumsum()
    return min(int(np.searchsorted(total, uniform * total[-1], side="right")), len(total) - 1)
