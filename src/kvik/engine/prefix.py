"""The prefix cache: what was computed once for the beginning of a text is there for the next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq

from kvik.cache import KVCache, Sequence, State
from kvik.engine.identity import Digest, Identity, Text, sha256
from kvik.engine.prefix_books import Leaves, Listed, PrefixStats
from kvik.engine.prefix_entry import Entry
from kvik.engine.prefix_state import Hit, addition, part, state_of
from kvik.engine.prefix_tree import Tree
from kvik.recipe.plan import Plan

__all__ = ["Hit", "PrefixCache", "PrefixStats"]

BLOCK = 32  # where no group keeps tokens by position


class PrefixCache:
    """Prefixes of one model under one plan, in the pages of its KVCache's pool.

    Where every length can be cut back to (``cuttable``: all tokens kept, by position, coded at
    once, no layer states), every full block of a text gets an entry, and the rest one more.
    Elsewhere an entry is a checkpoint: it is there for texts that go on from exactly its length,
    or from the few lengths below that the plan can cut it back to.

    An entry references the pages it lists once, apart from those of sequences. Digests find
    entries; ids and marks are compared before anything is used, so that two texts with the same
    digest never share. Tables of running sequences are never rewritten: of two equal prefixes
    the first one stays.
    """

    def __init__(
        self,
        cache: KVCache,
        model: bytes,
        *,
        digest: Digest = sha256,
        max_bytes: int | None = None,
    ) -> None:
        """``model`` is the model's identity; ``max_bytes`` bounds what the entries list."""
        self.cache, self.max_bytes = cache, max_bytes
        plan, self._groups = cache.resolved, cache.resolved.groups
        self.block = block_of(plan)
        self.cuttable = cuttable(plan)
        self._whole = any(g.evicting for g in plan.groups) or _has_states(plan)
        self.identity = Identity.of(plan, model, self.block, digest)
        self._tree = Tree(self.identity, cache.create().state)
        self._leaves = Leaves()
        self._listed = Listed(cache.pool, plan.groups)
        self._clock = self._hits = self._hit_tokens = self._misses = self._evictions = 0

    def text(self, ids: Iterable[int] = (), marks: Iterable[int] = (), domain: str = "") -> Text:
        """A text that this cache can be asked about."""
        return Text(self.identity, ids, marks, domain)

    # Finding

    def match(self, text: Text, limit: int) -> Hit:
        """The longest usable prefix of ``text`` of at most ``limit`` tokens; changes nothing.

        The deepest entry that the text goes through, or the part that the text has in common
        with one of the entries behind it, if that can be cut to it.
        """
        self._check(text)
        limit = min(limit, len(text))
        node = self._tree.find(text, limit)
        if node is None:
            return Hit(0, None, text, self.cache)
        for length, child in () if self._whole else node.nearest(text.symbols, limit):
            if self.cuttable or self.cache.can_cut_state(self.state_of(child), length):
                return Hit(length, child, text, self.cache)
        return Hit(node.length, node if node.length else None, text, self.cache)

    def take(self, hit: Hit) -> Sequence:
        """A new sequence that continues from a hit; :meth:`note` counts its use."""
        if hit.entry is not None and hit.entry.parent is None:
            hit = self.match(hit.text, hit.length)
        if hit.entry is None:
            return self.cache.create()
        return self.cache.restore(hit.state)

    def note(self, hit: Hit) -> None:
        """Counts a hit, which makes its entry the newest, or a miss."""
        if hit.entry is None:
            self._misses += 1
            return
        self._hits += 1
        self._hit_tokens += hit.length
        if hit.entry.parent is not None:
            self._touch(hit.entry)

    def _check(self, text: Text) -> None:
        if text.identity is not self.identity and text.identity != self.identity:
            raise ValueError("this text belongs to another model or recipe; use text() to make one")

    # Storing

    def insert(self, text: Text, sequence: Sequence) -> None:
        """Stores what ``sequence`` holds of ``text``: its full blocks, if the plan can be cut
        anywhere, and its present length in any case.
        """
        self._check(text)
        state = sequence.state
        if state.length > len(text):
            raise ValueError(f"a sequence of {state.length} tokens has a text of {len(text)}")
        if not state.length:
            return
        node = self._tree.find(text, state.length) or self._tree.root(text.domain)
        if self.cuttable:
            node = self._insert_blocks(node, text, state)
        elif node.length < state.length:
            node = self._add(node, text, state.length, state) or node
        if node.parent is None:  # a collision at the very beginning
            self._tree.prune(node)
            return
        self._touch(node)
        text.cursor = self._on_the_way(node, state.length)
        if self.max_bytes is not None:
            while self._listed.nbytes > self.max_bytes and (leaf := self._leaves.pop()):
                self._evict(leaf)

    def _on_the_way(self, node: Entry, length: int) -> Entry:
        """The deepest entry of a path to ``length`` tokens that will not make way for a longer."""
        while node.parent is not None and (
            node.length > length or (self.cuttable and node.length % self.block)
        ):
            node = node.parent
        return node

    def _insert_blocks(self, node: Entry, text: Text, state: State) -> Entry:
        """Every missing full block and the rest; the last entry, which may be longer than asked."""
        if node.length == state.length:
            return node
        node = self._on_the_way(node, state.length)
        for stop in range(node.length + self.block, state.length + self.block, self.block):
            entry = self._add(node, text, min(stop, state.length), state)
            if entry is None:
                break
            node = entry
        return node

    def _add(self, parent: Entry, text: Text, stop: int, state: State) -> Entry | None:
        """A new child of ``parent``; None when another prefix has its digest.

        Nobody needs the first part of a block beside the whole one if it can be cut anyway, so
        the longer of two takes the place of the shorter; other plans need both.
        """
        symbols = tuple(text.symbols[parent.length : stop])
        if self.cuttable and (longer := parent.extended_by(symbols)):
            return longer[0]
        digest = text.prefix_digest(stop)
        if digest in self._tree.index:
            return None
        shorter = parent.child_of(text.symbols, stop)
        if self.cuttable:
            main = part(state, parent.length, stop, self._groups)
        else:
            main = addition(state, self.state_of(parent), self._groups)
        entry = Entry(parent, digest, stop, symbols, main, state.tail, state.layer_states)
        self._tree.add(entry)
        self._listed.add(entry)
        self._touch(entry)
        if not entry.children:
            self._leaves.push(entry)
        if shorter is not None:
            self._remove(shorter)
        return entry

    # Giving up

    def evict(self, demand: Seq[int]) -> bool:
        """Gives up leaves, least recently used first, until ``demand`` fits; whether it does.

        Nothing is given up when that could not be enough. Leaves whose pages are all in use
        elsewhere free nothing and go only where the entries above them are needed.
        """
        pool = self.cache.pool
        if pool.can_alloc(demand):
            return True
        if not pool.can_alloc(demand, evict=True):
            return False
        spared: list[Entry] = []
        while not pool.can_alloc(demand) and (leaf := self._leaves.pop()):
            if (pool.references(leaf.pages) > 1).all():
                spared.append(leaf)
            else:
                self._evict(leaf)
        for leaf in spared:
            self._leaves.push(leaf)
        while not pool.can_alloc(demand) and (leaf := self._leaves.pop()):
            self._evict(leaf)
        return pool.can_alloc(demand)

    def clear(self) -> None:
        """Gives up every entry."""
        for entry in self.entries():
            self._listed.remove(entry)
            entry.parent = None
        self._tree = Tree(self.identity, self.cache.create().state)
        self._leaves = Leaves()

    def _evict(self, leaf: Entry) -> None:
        self._remove(leaf)
        self._evictions += 1

    def _remove(self, entry: Entry) -> None:
        # Whoever used the entry used its parent too; said here, so that a use costs no walk.
        if entry.parent is not None:
            entry.parent.used = max(entry.parent.used, entry.used)
        parent = self._tree.remove(entry)
        self._leaves.forget(entry)
        self._listed.remove(entry)
        if parent is not None and not parent.children:
            self._leaves.push(parent)

    # Times and counts

    def _touch(self, entry: Entry) -> None:
        self._clock += 1
        entry.used = self._clock

    def stats(self) -> PrefixStats:
        """Figures of this moment and since the start."""
        return PrefixStats(
            len(self._tree.index),
            len(self._listed.counts),
            self._listed.nbytes,
            self._hits,
            self._hit_tokens,
            self._misses,
            self._evictions,
        )

    # One by one, for saving

    def entries(self) -> Iterator[Entry]:
        """All entries, in no particular order."""
        return iter(list(self._tree.index.values()))

    def state_of(self, entry: Entry) -> State:
        """The state of an entry's whole prefix, with no references of its own."""
        return state_of(entry, self._groups)

    def text_of(self, entry: Entry) -> Text:
        """The text of an entry's whole prefix."""
        return self._tree.text_of(entry)


def _has_states(plan: Plan) -> bool:
    return any(layer.kind == "state" for layer in plan.spec.layers)


def block_of(plan: Plan) -> int:
    """Tokens of a block: whole pages of every group that keeps tokens by position."""
    if all(g.evicting for g in plan.groups):
        return BLOCK
    return math.lcm(*(g.tokens for g in plan.groups if g.evicting is None))


def cuttable(plan: Plan) -> bool:
    """Whether every prefix of a sequence can be had from its tables."""
    positional = all(g.evicting is None and g.tail is None for g in plan.groups)
    return positional and all(g.kept.window is None for g in plan.groups) and not _has_states(plan)
