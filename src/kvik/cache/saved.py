"""Sequences on disk: save, restore, and what a file has to say to be believed.

The header says which recipe, model and text the pages belong to. The first section holds token
ids, marks, chosen positions and layer states, the second one the pages. Everything is checked
before a page is allocated; then the pages are copied a slice at a time. The frame around it is in
``container``.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager

from kvik.cache.container import reading, writing
from kvik.cache.kvcache import KVCache
from kvik.cache.saved_read import Checked, MakeRoom, check, no_room, read_about, take
from kvik.cache.saved_text import About, Saved
from kvik.cache.saved_write import write
from kvik.cache.table import Sequence

__all__ = ["About", "Saved", "about", "checked", "dump", "load", "restore", "save", "take"]


def save(
    path: str | os.PathLike[str],
    cache: KVCache,
    sequence: Sequence,
    *,
    ids: Seq[int],
    marks: Seq[int] = (),
    domain: str = "",
    identity: bytes,
) -> None:
    """Writes a sequence to ``path``, whole or not at all.

    ``ids`` are the token ids that the sequence holds, ``marks`` positions among them, ``identity``
    is the model's. KvikError when they do not fit the sequence, or the disk refuses.
    """
    with writing(path) as file:
        write(file, cache, Saved(sequence, tuple(ids), tuple(marks), domain), identity)


def restore(
    path: str | os.PathLike[str],
    cache: KVCache,
    *,
    identity: bytes,
    domain: str | None = None,
    make_room: MakeRoom = no_room,
) -> Saved:
    """Reads what :func:`save` wrote, into any pool of the same recipe and model.

    With ``domain`` a file of another domain is refused. ``make_room`` is asked for the pages of
    each of the pool's sizes once the whole file is known to be good. KvikError for a file that is
    damaged, cut short, forged or foreign, CapacityError for one that does not fit; the cache is
    unchanged then.
    """
    with checked(path, cache, identity=identity, domain=domain) as found:
        return take(found, make_room)


@contextmanager
def checked(
    path: str | os.PathLike[str], cache: KVCache, *, identity: bytes, domain: str | None = None
) -> Iterator[Checked]:
    """The first half of :func:`restore`, which changes nothing; :func:`take` is the second."""
    with reading(path) as file:
        yield check(file, cache, identity, domain)


def about(path: str | os.PathLike[str]) -> About:
    """What the file at ``path`` holds, from its header alone; KvikError as for :func:`restore`."""
    with reading(path) as file:
        return read_about(file)


def dump(
    cache: KVCache,
    sequence: Sequence,
    *,
    ids: Seq[int],
    marks: Seq[int] = (),
    domain: str = "",
    identity: bytes,
) -> bytes:
    """The content of the file that :func:`save` would write."""
    file = io.BytesIO()
    write(file, cache, Saved(sequence, tuple(ids), tuple(marks), domain), identity)
    return file.getvalue()


def load(cache: KVCache, data: bytes, *, identity: bytes, domain: str | None = None) -> Saved:
    """:func:`restore` from the content of a file."""
    return take(check(io.BytesIO(data), cache, identity, domain))
