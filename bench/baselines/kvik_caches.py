"""Worker: kvik's caches, each named by its recipe."""

from __future__ import annotations

from typing import Any

import torch
from logits import Out
from wire import answer_all

from kvik import __version__
from kvik.engine.session import Session
from kvik.models import Model, load_model


class Kvik:
    """One model."""

    model: Model

    def open(self, *, model: str, threads: int) -> dict[str, Any]:
        """Loads the model."""
        torch.set_num_threads(threads)
        self.model = load_model(model)
        return {"versions": {"kvik": __version__}}

    def _out(self, path: str, rows: int) -> Out:
        return Out(path, rows, self.model.spec.vocab)

    def forced(
        self, *, ids: list[int], context: int, chunk: int, cache: dict[str, Any], out: str
    ) -> dict[str, Any]:
        """Logits after each token behind the context; bytes of K and V after the context."""
        session = Session(self.model, cache["kv"], max_tokens=len(ids))
        session.feed(ids[:context])
        wide = sum(layer.row_values for layer in self.model.spec.layers)
        found = {"bytes": session.kv_bytes, "elements": context * wide}
        self._feed(session, ids[context:], chunk, out)
        return found | {"bytes_after": session.kv_bytes}

    def _feed(self, session: Session, ids: list[int], chunk: int, out: str) -> None:
        rows = self._out(out, len(ids))
        for low in range(0, len(ids), chunk):
            rows.add(session.feed(ids[low : low + chunk], logits="all", chunk=chunk).numpy())
        rows.close()

    def streamed(self, *, ids: list[int], cache: dict[str, Any], out: str) -> dict[str, Any]:
        """Logits after every token of a text."""
        session = Session(self.model, cache["kv"], max_tokens=len(ids))
        self._feed(session, ids, 256, out)
        return {"bytes": session.kv_bytes}

    def recomputed(self, *, ids: list[int], at: list[int], budget: int, out: str) -> dict[str, Any]:
        """Logits after each position of ``at`` from its newest ``budget`` tokens alone."""
        rows = self._out(out, len(at))
        for position in at:
            session = Session(self.model, "fp32", max_tokens=budget)
            rows.add(session.feed(ids[position - budget + 1 : position + 1]).numpy())
        rows.close()
        return {}


if __name__ == "__main__":
    kvik = Kvik()
    answer_all({name: getattr(kvik, name) for name in ("open", "forced", "streamed", "recomputed")})
