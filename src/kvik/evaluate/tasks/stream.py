"""How far a cache's predictions are from the dense cache's, token by token of a running text.

Every scored token reads the compressed cache: a plain forward pass would never touch it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kvik.evaluate import quality
from kvik.evaluate.metrics import Rows
from kvik.evaluate.tasks.base import REFERENCE, Ask, Material, Subject, Task, Unit, Values, numbers


class Streamed(Task):
    """Tasks that score ``scored`` tokens one by one against the dense cache's logits."""

    kind = "stream"
    needs_trace = True
    uses = frozenset({"scored"})
    scored: ClassVar[int] = 512

    def options(self, ask: Ask) -> dict[str, Any]:
        return {"scored": ask.scored or self.scored}

    def sound(self, where: Mapping[str, Any], values: Mapping[str, Any], recipe: str) -> bool:
        if not all(numbers(values.get(n), where["scored"]) for n in ("kl", "nll", "agree")):
            return False
        likely = all(0 <= x <= 1e6 for x in values["kl"]) and all(
            -1e-4 <= x <= 1e6 for x in values["nll"]
        )
        return likely and all(x in (0, 1) for x in values["agree"])


class Stream(Streamed):
    """A context, then teacher-forced tokens, whose logits are set against the dense cache's."""

    name = "kl"
    meaning = "KL to the dense cache, top-1 agreement and perplexity after a context"

    def tokens(self, unit: Unit) -> int:
        return quality.Window.length(unit.where["context"], unit.where["scored"])

    def check(self, material: Material, unit: Unit) -> None:
        self.window(material, unit)

    def window(self, material: Material, unit: Unit) -> quality.Window:
        """The tokens of a unit; the first one begins a text where the model wants that."""
        head = material.head
        text = material.excerpt(self.tokens(unit) - len(head), unit.where["sample"])
        return quality.Window([*head, *text], unit.where["context"])

    def reference(self, subject: Subject, unit: Unit) -> tuple[Values, Any]:
        window = self.window(subject.material, unit)
        out = np.empty((window.rows, subject.model.spec.vocab), dtype=np.float32)
        return self._run(subject, REFERENCE, window, None, out), out

    def measure(self, subject: Subject, unit: Unit, recipe: str, trace: Any) -> Values:
        return self._run(subject, recipe, self.window(subject.material, unit), trace, None)

    def _run(
        self,
        subject: Subject,
        recipe: str,
        window: quality.Window,
        trace: NDArray[np.float32] | None,
        out: NDArray[np.float32] | None,
    ) -> Values:
        session = subject.session(recipe, len(window.ids))
        try:
            chunk = min(subject.chunk, quality.CHUNK)
            quality.prefill(session, window, _silent, chunk=subject.chunk)
            held = session.kv_bytes
            if trace is None:
                assert out is not None
                rows = quality.record(session, window, out, _silent, chunk=chunk)
            else:
                rows = quality.measure(session, window, trace, _silent, chunk=chunk)
        finally:
            session.close()
        return row_values(rows) | {"kv_bytes": held}


class Length(Stream):
    """The same at several contexts, over fewer tokens: curves."""

    name = "length"
    meaning = "the same figures against the length of the context"
    contexts = (512, 1024, 2048, 4096)
    scored = 128


class Whole(Stream):
    """A text from its first token on; what is scored begins where a budget is spent."""

    name = "stream"
    meaning = "a text streamed from its start: where a full window collapses"
    contexts = (256,)
    samples = 2
    scored = 3839  # 4,096 tokens in all, the last of which is a target alone


def row_values(rows: Rows) -> Values:
    """What is kept of each scored token, in few digits."""
    return {
        "kl": [float(f"{x:.6g}") for x in rows.kl],
        "nll": [float(f"{x:.6g}") for x in rows.nll],
        "agree": [int(x) for x in rows.agree],
    }


def _silent(tokens: int) -> None:
    """Progress is told by the unit."""
