"""What a prefix is: the content of a growing text, and a digest for every block of it."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvik.recipe.plan import Plan

Digest = Callable[[bytes], bytes]


def sha256(data: bytes) -> bytes:
    """The digest that identities use unless a test brings a worse one."""
    return hashlib.sha256(data).digest()


def fields(**values: bytes) -> bytes:
    """Named values as bytes; other names, values or bounds between them give other bytes.

    Each field carries its name and its length, so that a value cannot pass for another field
    (a tenant called like an adapter, say) or spill into the next one.
    """
    parts = [b"%s %d:%s" % (name.encode(), len(value), value) for name, value in values.items()]
    return b"".join(parts)


def numbers(values: Iterable[int]) -> bytes:
    """Whole numbers as bytes: 8 bytes each where all fit, decimal otherwise; never ambiguous."""
    values = values if isinstance(values, list | tuple) else list(values)
    try:
        return b"q" + struct.pack(f"<{len(values)}q", *values)
    except struct.error:
        return b"d" + ",".join(map(str, values)).encode()


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading ids two texts have in common."""
    parts = enumerate(zip(a, b, strict=False))
    return next((index for index, (x, y) in parts if x != y), min(len(a), len(b)))


_LINK = b"kind 5:blockparent %d:%sids %d:%smarks %d:%s"


@dataclass(frozen=True)
class Identity:
    """Everything beside the content of a text that its cached bytes depend on.

    ``recipe`` and ``model`` are digests, ``layout`` describes the pages and ``block`` is the
    number of tokens that get one digest.
    """

    recipe: bytes
    model: bytes
    layout: bytes
    block: int
    digest: Digest = sha256

    @classmethod
    def of(cls, plan: Plan, model: bytes, block: int, digest: Digest = sha256) -> Identity:
        """The identity of what ``plan`` stores for the model whose own identity is ``model``."""
        layout = repr([(g.head, g.kept, g.evicting, g.main, g.tail) for g in plan.groups])
        return cls(bytes.fromhex(plan.recipe.digest), model, layout.encode(), block, digest)

    def root(self, domain: str) -> bytes:
        """The digest that the first block of every text of a domain has as its parent."""
        return self.digest(
            fields(
                kind=b"kvik prefix 1",
                recipe=self.recipe,
                model=self.model,
                layout=self.layout,
                block=self.block.to_bytes(8, "little"),
                domain=domain.encode(),
            )
        )

    def link(self, parent: bytes, ids: Iterable[int], marks: Iterable[int]) -> bytes:
        """The digest of a block, or of the first tokens of one, behind ``parent``.

        Its text is what :func:`fields` makes of kind, parent, ids and marks, in one go.
        """
        i, m = numbers(ids), numbers(marks)
        return self.digest(_LINK % (len(parent), parent, len(i), i, len(m), m))


class Text:
    """The known content of one growing sequence.

    ``ids`` are content ids (token ids, or anything else that stands for what is at a position)
    and change through :meth:`append` only. ``marks`` are the positions at which a recipe may
    act, such as ends of messages; what is cached of the first n tokens depends on the marks below
    n. ``domain`` keeps tenants apart: nothing is shared between two domains.
    """

    __slots__ = ("_digests", "_symbols", "cursor", "domain", "identity", "ids", "marks")

    def __init__(
        self,
        identity: Identity,
        ids: Iterable[int] = (),
        marks: Iterable[int] = (),
        domain: str = "",
    ) -> None:
        self.identity, self.domain, self.marks = identity, domain, frozenset(marks)
        self.ids: list[int] = list(ids)
        self._symbols: list[int] = []
        self.cursor: object = None  # where a prefix cache last was in this text; its own business
        self._digests = [identity.root(domain)]

    def __len__(self) -> int:
        return len(self.ids)

    def append(self, token: int) -> None:
        """One more position."""
        self.ids.append(token)

    @property
    def symbols(self) -> list[int]:
        """Id and mark of each position in one number, so that one comparison tells of both."""
        known, ids, marks = self._symbols, self.ids, self.marks
        if len(known) < len(ids):  # a text that only grows is asked rarely
            new = enumerate(ids[len(known) :], len(known))
            known.extend([2 * token + (position in marks) for position, token in new])
        return known

    def fork(self) -> Text:
        """A text with the same content that goes on by itself."""
        twin = object.__new__(Text)
        twin.identity, twin.domain, twin.marks = self.identity, self.domain, self.marks
        twin.ids, twin._symbols, twin.cursor = list(self.ids), list(self._symbols), self.cursor
        twin._digests = list(self._digests)
        return twin

    def digest(self, index: int) -> bytes:
        """The chained digest of whole block ``index``: of all content up to its end."""
        return self.prefix_digest((index + 1) * self.identity.block)

    def prefix_digest(self, length: int) -> bytes:
        """The chained digest of the first ``length`` tokens; those of whole blocks are kept."""
        if not 0 <= length <= len(self.ids):
            raise ValueError(f"a text of {len(self.ids)} tokens has no prefix of {length}")
        block, known = self.identity.block, self._digests
        for start in range((len(known) - 1) * block, length - block + 1, block):
            known.append(self._link(known[-1], start, start + block))
        whole = length // block
        if length == whole * block:
            return known[whole]
        return self._link(known[whole], whole * block, length)

    def _link(self, parent: bytes, start: int, stop: int) -> bytes:
        marks = [p - start for p in range(start, stop) if p in self.marks] if self.marks else ()
        return self.identity.link(parent, self.ids[start:stop], marks)
