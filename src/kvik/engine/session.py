"""Session: one growing text of one model through one recipe."""

from __future__ import annotations

import os
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kvik.cache import KVCache, PagePool, State, about, choose_slab, restore, save
from kvik.engine.uninterrupted import uninterrupted
from kvik.errors import CapacityError, KvikError
from kvik.machine import available_memory
from kvik.models import Model
from kvik.plan import kv_bytes, pool_capacity
from kvik.recipe import Plan, Recipe

CHUNK = 512


@dataclass(frozen=True)
class Mark:
    """A point of a session that it can go back to without recomputing; it pins its pages."""

    tokens: tuple[int, ...]
    state: State


@dataclass
class _Room:
    """What a session and its forks have left of their pool."""

    marks: int


class Session:
    """Feeds tokens through a model and keeps their K and V as the recipe says.

    ``max_tokens`` bounds the text and sizes the pool, whose memory is touched only as it fills.
    ``max_forks`` sessions forked from this one can live beside it, and all of them together can
    hold ``max_marks`` marks. Raises CapacityError when the cache would not fit in the memory that
    is available.
    """

    def __init__(
        self,
        model: Model,
        recipe: Recipe | str,
        *,
        max_tokens: int,
        max_forks: int = 1,
        max_marks: int = 1,
    ) -> None:
        if max_tokens < 1:
            raise KvikError(f"a session needs room for at least one token, not {max_tokens}")
        self.model, self.max_tokens = model, max_tokens
        self.recipe = Recipe.parse(recipe)
        plan = self.recipe.resolve(model.spec)
        check_fits(plan, max_tokens)
        slab = choose_slab(plan.page_bytes)
        capacity = pool_capacity(plan, max_tokens, slab, 1 + max_forks + max_marks)
        self.cache = KVCache(plan, PagePool(plan.page_bytes, capacity, slab_bytes=slab))
        self._sequence = self.cache.create()
        self._marks: list[Mark] = []
        self._room = _Room(max_marks)
        self.tokens: list[int] = []

    @classmethod
    def restore(
        cls,
        model: Model,
        path: str | os.PathLike[str],
        *,
        max_tokens: int,
        recipe: Recipe | str | None = None,
        max_forks: int = 1,
        max_marks: int = 1,
        domain: str = "",
    ) -> Session:
        """The session that was saved at ``path``: what is fed next is all that is computed.

        Its recipe is the file's own unless one is given. KvikError for a file of another model,
        recipe or domain and for one that is damaged, CapacityError when it does not fit.
        """
        found = about(path)
        if found.tokens > max_tokens:
            raise CapacityError(
                f"{path}: a saved sequence of {found.tokens:,} tokens does not fit a session for "
                f"{max_tokens:,}; start it with a larger context"
            )
        session = cls(
            model,
            found.recipe if recipe is None else recipe,
            max_tokens=max_tokens,
            max_forks=max_forks,
            max_marks=max_marks,
        )
        saved = restore(path, session.cache, identity=model.identity, domain=domain)
        if max(saved.ids, default=0) >= model.spec.vocab:
            raise KvikError(f"{path}: the saved sequence has tokens that the model does not know")
        session._sequence, session.tokens = saved.sequence, list(saved.ids)
        return session

    def save(self, path: str | os.PathLike[str], *, domain: str = "") -> None:
        """Writes the session to ``path``, whole or not at all; its marks stay behind.

        Only :meth:`restore` with the same model and ``domain`` takes it. KvikError when the disk
        refuses.
        """
        save(
            path,
            self.cache,
            self._sequence,
            ids=self.tokens,
            domain=domain,
            identity=self.model.identity,
        )

    @property
    def plan(self) -> Plan:
        """The recipe resolved for the model."""
        return self.cache.resolved

    @property
    def state(self) -> State:
        """What the cache holds of the text now; a step makes a new one and leaves this as it is."""
        return self._sequence.state

    @property
    def kv_bytes(self) -> int:
        """Bytes held now: pages (each once), tables and states, marks included."""
        marked = [type(self._sequence)(m.state) for m in self._marks]
        return self.cache.nbytes(self._sequence, *marked)

    def planned_bytes(self, context: int) -> int:
        """Bytes that the planner expects after ``context`` tokens (without marks)."""
        return kv_bytes(self.plan, context).total

    def feed(
        self, tokens: Seq[int], *, logits: Literal["last", "all"] = "last", chunk: int = CHUNK
    ) -> Tensor:
        """Appends tokens and returns the logits after the last or after all of them, float32.

        Shape [1, vocab] or [n, vocab]. What a token sees does not depend on ``chunk``; torch's
        float32 products round a little differently for other chunks, which quantized caches can
        amplify (docs/how-it-works.md has the figures). Either all tokens are in the cache
        afterwards, or (on an error or an interrupt) the chunks that finished: ``tokens`` tells.
        """
        if not tokens:
            raise KvikError("there are no tokens to feed")
        if chunk < 1:
            raise KvikError(f"a chunk has at least one token, not {chunk}")
        if not all(isinstance(t, int) for t in tokens):
            raise KvikError("tokens are whole numbers: the ids that the tokenizer gives")
        if len(self.tokens) + len(tokens) > self.max_tokens:
            raise CapacityError(
                f"{len(self.tokens) + len(tokens)} tokens asked of a session for "
                f"{self.max_tokens}; start it with a larger context"
            )
        if self.plan.recompute:
            return self._recompute(tokens, logits)
        parts = []
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            last = start + len(part) == len(tokens)
            wanted = len(part) if logits == "all" else int(last)
            whole = wanted == len(part)
            rows = None if whole else torch.arange(len(part) - wanted, len(part))
            parts.append(self._step(part, rows))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _step(self, tokens: Seq[int], rows: Tensor | None) -> Tensor:
        try:
            with uninterrupted():
                self.cache.plan([self._sequence], [len(tokens)])
            out = self.model.forward(tokens, self.cache.at, self.cache, rows)
            with uninterrupted():
                self.cache.commit()
                self.tokens.extend(tokens)
        except BaseException:
            self.cache.abort()
            raise
        return out.float()

    def _recompute(self, tokens: Seq[int], logits: str) -> Tensor:
        """Without a cache the whole text runs again and nothing is kept."""
        text = [*self.tokens, *tokens]
        try:
            with uninterrupted():
                self.cache.plan([self._sequence], [len(text)])
            wanted = 1 if logits == "last" else len(tokens)
            rows = torch.arange(len(text) - wanted, len(text))
            out = self.model.forward(text, self.cache.at, self.cache, rows)
        finally:
            self.cache.abort()
        self.tokens.extend(tokens)
        return out.float()

    def fork(self) -> Session:
        """A session with the same past that shares pages until the two differ."""
        twin = object.__new__(Session)
        twin.model, twin.max_tokens, twin.recipe = self.model, self.max_tokens, self.recipe
        twin.cache, twin.tokens, twin._marks = self.cache, list(self.tokens), []
        twin._sequence, twin._room = self.cache.create(), self._room
        try:
            with uninterrupted():
                twin._sequence = self.cache.fork(self._sequence)
            return twin
        except BaseException:
            twin.close()
            raise

    def mark(self) -> None:
        """Remembers this point, so that :meth:`trim` can come back to it exactly.

        CapacityError when the pool has room for no more marks; nothing has changed then.
        """
        if not self._room.marks:
            raise CapacityError(
                "the session has no room for another mark; start it with a larger max_marks, or "
                "go back behind an older one"
            )
        with uninterrupted():
            self._marks.append(Mark(tuple(self.tokens), self.cache.snapshot(self._sequence)))
            self._room.marks -= 1

    def trim(self, length: int) -> int:
        """Goes back to the first ``length`` tokens; returns how many had to be recomputed.

        Nothing is recomputed when all they need is still stored; otherwise the newest mark at or
        below ``length`` is restored and the rest runs again.
        """
        if not 0 <= length <= len(self.tokens):
            raise KvikError(f"cannot go back to {length} of {len(self.tokens)} tokens")
        text = self.tokens[:length]
        with uninterrupted():
            self._go_back(length)
        rest = text[len(self.tokens) :]
        if rest:
            self.feed(rest)
        return len(rest)

    def _go_back(self, length: int) -> None:
        """To ``length`` tokens if all they need is stored, else to the last mark before that."""
        while self._marks and len(self._marks[-1].tokens) > length:
            self._unmark()
        if self.plan.recompute:
            del self.tokens[length:]
        elif self.cache.can_cut(self._sequence, length):
            self.cache.cut(self._sequence, length)
            del self.tokens[length:]
        else:
            self.cache.free(self._sequence)
            self.tokens = []
            if self._marks:
                self._sequence = self.cache.restore(self._marks[-1].state)
                self.tokens = list(self._marks[-1].tokens)

    def _unmark(self) -> None:
        self.cache.drop(self._marks.pop().state)
        self._room.marks += 1

    def close(self) -> None:
        """Gives every page back."""
        with uninterrupted():
            while self._marks:
                self._unmark()
            self.cache.free(self._sequence)
            self.tokens = []


def check_fits(plan: Plan, tokens: int, available: int | None = None) -> None:
    """CapacityError when the cache of ``tokens`` tokens exceeds the available memory."""
    need = kv_bytes(plan, tokens).total
    have = available_memory() if available is None else available
    if need > have:
        raise CapacityError(
            f"the cache of {tokens:,} tokens with {plan.recipe} needs {need:,} bytes and "
            f"{have:,} are available; ask for less context or a smaller recipe"
        )
