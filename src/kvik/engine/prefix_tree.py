"""The tree of a prefix cache: which entry is the longest beginning of a text."""

from __future__ import annotations

from kvik.cache import State
from kvik.engine.identity import Identity, Text
from kvik.engine.prefix_entry import Entry


class Tree:
    """All entries, under one root for each domain, and by the digests of their prefixes.

    A digest only says where to look: ids and marks are compared before an entry is returned.
    """

    def __init__(self, identity: Identity, empty: State) -> None:
        """``empty`` is the state of no tokens, which the roots stand for."""
        self._identity, self._empty = identity, empty
        self.roots: dict[str, Entry] = {}
        self.index: dict[bytes, Entry] = {}

    def find(self, text: Text, limit: int) -> Entry | None:
        """The deepest entry that the first ``limit`` tokens go through.

        It can be the root of the text's domain; None when that has no entry.
        """
        node = self._jump(text, limit) or self.roots.get(text.domain)
        while node and (child := node.child_of(text.symbols, limit)):
            node = child
        return node

    def _jump(self, text: Text, limit: int) -> Entry | None:
        """An entry on the way: where the text was last, or what its digests find."""
        last, block = text.cursor, self._identity.block
        if isinstance(last, Entry) and last.length <= limit and self._owns(last):
            return last
        for length in range(limit // block * block, 0, -block):
            entry = self.index.get(text.prefix_digest(length))
            if entry and entry.length == length and self._spells(entry, text):
                return entry
        return None

    def _owns(self, entry: Entry) -> bool:
        return self.index.get(entry.digest) is entry

    def _spells(self, entry: Entry, text: Text) -> bool:
        """Whether an entry, with all its ancestors, is a prefix of the text."""
        while entry.parent is not None:
            own = text.symbols[entry.parent.length : entry.length]
            if tuple(own) != entry.symbols:
                return False
            entry = entry.parent
        return entry.domain == text.domain

    def root(self, domain: str) -> Entry:
        """The root of a domain, which is there from now on."""
        if domain not in self.roots:
            e, digest = self._empty, self._identity.root(domain)
            self.roots[domain] = Entry(None, digest, 0, (), e.main, e.tail, e.layer_states)
            self.roots[domain].domain = domain
        return self.roots[domain]

    def add(self, entry: Entry) -> None:
        """Puts a new entry in its place below its parent."""
        assert entry.parent is not None
        entry.parent.add(entry)
        self.index[entry.digest] = entry

    def remove(self, leaf: Entry) -> Entry | None:
        """Takes a leaf out. Returns the entry above it; None for a root, which goes if empty."""
        parent = leaf.parent
        assert parent is not None
        assert not leaf.children
        del self.index[leaf.digest]
        parent.remove(leaf)
        if parent.parent is not None:
            return parent
        if not parent.children:
            self.prune(parent)
        return None

    def prune(self, root: Entry) -> None:
        """Forgets a root without children."""
        if not root.children:
            del self.roots[root.domain]

    def text_of(self, entry: Entry) -> Text:
        """The text of an entry's whole prefix."""
        symbols = [symbol for e in entry.path() for symbol in e.symbols]
        marks = [i for i, symbol in enumerate(symbols) if symbol % 2]
        return Text(self._identity, (s // 2 for s in symbols), marks, entry.domain)
