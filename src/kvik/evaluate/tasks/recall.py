"""Whether something that stood in the context can be told afterwards.

An answer is scored by its log-probability, token by token with the right tokens before it, and by
whether greedy decoding gives it. The floor is the same answer after a context that says something
else: how likely it is to one who has not read it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kvik.errors import KvikError
from kvik.evaluate.metrics import log_softmax
from kvik.evaluate.tasks.base import (
    REFERENCE,
    Material,
    Subject,
    Task,
    Unit,
    Values,
    numbers,
)
from kvik.evaluate.tasks.branches import visit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvik.engine.session import Session


@dataclass(frozen=True)
class Probe:
    """A prompt, the answer's tokens, and where in the context the answer stands.

    With ``expects`` the model writes ``steps`` tokens freely and the hit is the share of these
    texts among them; with ``by_token`` it is the share of the answer's tokens that are likeliest;
    else it is that greedy decoding gives ``answer``.
    """

    at: float
    prompt: Sequence[int]
    answer: Sequence[int]
    expects: tuple[str, ...] = field(default=())
    steps: int = 0
    by_token: bool = False


class Recall(Task):
    """Tasks that hide something and ask for it. ``axis`` names what a probe's ``at`` is."""

    kind = "recall"
    axis: ClassVar[str] = "depth"

    @abstractmethod
    def hidden(self, material: Material, unit: Unit, *, decoy: bool) -> list[Probe]:
        """What is asked, in ascending order of ``at``.

        With ``decoy`` the contexts say something else; questions and answers stay.
        """

    def probes(self, material: Material, unit: Unit) -> list[Probe]:
        """What is asked of every cache."""
        return self.hidden(material, unit, decoy=False)

    def decoys(self, material: Material, unit: Unit) -> list[Probe]:
        """What the floor is measured with."""
        return self.hidden(material, unit, decoy=True)

    def tokens(self, unit: Unit) -> int:
        return int(unit.where["context"])

    def check(self, material: Material, unit: Unit) -> None:
        self.probes(material, unit)

    def sound(self, where: Mapping[str, Any], values: Mapping[str, Any], recipe: str) -> bool:
        items, likely = values.get("items"), ["logp", "floor"] if recipe == REFERENCE else ["logp"]
        if not isinstance(items, list) or not items:
            return False
        if not all(isinstance(item, dict) and _sound(item, likely) for item in items):
            return False
        return "depths" not in where or self.alike(values) == where["depths"]

    def alike(self, values: Mapping[str, Any]) -> Any:
        return [item["at"] for item in values["items"]]

    def reference(self, subject: Subject, unit: Unit) -> tuple[Values, Any]:
        probes, decoys = self.probes(subject.material, unit), self.decoys(subject.material, unit)
        values = recall(subject, REFERENCE, [*probes, *decoys])
        found, floor = values["items"][: len(probes)], values["items"][len(probes) :]
        for item, decoy in zip(found, floor, strict=True):
            item["floor"] = decoy["logp"]
        return values | {"items": found}, None

    def measure(self, subject: Subject, unit: Unit, recipe: str, trace: Any) -> Values:
        return recall(subject, recipe, self.probes(subject.material, unit))


def _sound(item: Mapping[str, Any], likely: Sequence[str]) -> bool:
    """Whether shares are shares and log-probabilities are not positive, but for rounding."""
    if not numbers([item.get(name) for name in ("at", "hit", *likely)]):
        return False
    return 0 <= item["hit"] <= 1 and all(-1e6 <= item[name] <= 1e-4 for name in likely)


def recall(subject: Subject, recipe: str, probes: Sequence[Probe]) -> Values:
    """Asks every probe; ``items`` in their order, ``kv_bytes`` that the longest prompt takes."""
    tokens = max(len(p.prompt) + max(len(p.answer), p.steps) for p in probes)
    session = subject.session(recipe, tokens, forks=len(probes) + 1)
    items: dict[int, dict[str, Any]] = {}
    most = 0
    try:
        for i, branch, logits in visit(session, [p.prompt for p in probes], subject.chunk):
            most = max(most, branch.kv_bytes)
            items[i] = _ask(subject, branch, probes[i], logits.numpy())
    finally:
        session.close()
    return {"items": [items[i] for i in range(len(probes))], "kv_bytes": most}


def _ask(
    subject: Subject, session: Session, probe: Probe, logits: NDArray[np.float32]
) -> dict[str, Any]:
    share = _written(subject, session, probe, logits) if probe.expects else None
    rows = [logits]
    if len(probe.answer) > 1:
        rows.append(session.feed(probe.answer[:-1], logits="all", chunk=subject.chunk).numpy())
    table = np.concatenate(rows)
    if not np.isfinite(table).all():
        raise KvikError("the model's logits are not finite numbers with this cache")
    answer = np.asarray(probe.answer)
    chosen = log_softmax(table)[np.arange(len(answer)), answer]
    right = table.argmax(axis=-1) == answer
    if share is None:
        share = float(right.mean() if probe.by_token else right.all())
    return {"at": probe.at, "logp": float(chosen.sum()), "hit": share}


def _written(
    subject: Subject, session: Session, probe: Probe, logits: NDArray[np.float32]
) -> float:
    """The share of the expected texts in what the model writes greedily."""
    twin = session.fork()
    try:
        token, written = int(logits[-1].argmax()), []
        while token not in subject.model.eos_ids:
            written.append(token)
            if len(written) == probe.steps:
                break
            token = int(twin.feed([token])[-1].argmax())
    finally:
        twin.close()
    text = subject.model.tokenizer.decode(written).lower()
    return sum(expected.lower() in text for expected in probe.expects) / len(probe.expects)
