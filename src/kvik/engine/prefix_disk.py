"""Prefixes on disk: from the prefix cache to a file and back."""

from __future__ import annotations

import os

from kvik.cache import Sequence
from kvik.cache.saved import checked, save, take
from kvik.engine.identity import Text
from kvik.engine.prefix import PrefixCache
from kvik.engine.uninterrupted import uninterrupted
from kvik.errors import KvikError


def save_prefix(
    path: str | os.PathLike[str], prefixes: PrefixCache, text: Text, identity: bytes
) -> int:
    """Writes the longest stored prefix of ``text``; its tokens. ``identity`` is the model's.

    Where a prefix cannot be cut, one that ends before the text does: the same text again has to
    compute its last token, and could not use all of it. The cache must rest meanwhile.
    """
    hit = prefixes.match(text, len(text) - (not prefixes.cuttable))
    if not hit.length:
        raise KvikError("nothing of this prompt is in the prefix cache; run it once first")
    # Nothing is given up meanwhile, so that the pages need no owner who could forget them.
    save(
        path,
        prefixes.cache,
        Sequence(hit.state),
        ids=text.ids[: hit.length],
        marks=sorted(mark for mark in text.marks if mark < hit.length),
        domain=text.domain,
        identity=identity,
    )
    return hit.length


def load_prefix(
    path: str | os.PathLike[str], prefixes: PrefixCache, identity: bytes, domain: str | None
) -> int:
    """Puts a saved prefix into the prefix cache, in the place of older ones; its tokens.

    Older ones make room only for a file that is known to be good.
    """
    cache = prefixes.cache
    with checked(path, cache, identity=identity, domain=domain) as found, uninterrupted():
        saved = take(found, prefixes.evict)
        try:
            prefixes.insert(prefixes.text(saved.ids, saved.marks, saved.domain), saved.sequence)
        finally:
            cache.free(saved.sequence)
    return found.length
