"""Pages, block tables, snapshots and the KVCache that decoders talk to."""

from kvik.cache.kvcache import KVCache
from kvik.cache.pool import PagePool, choose_slab
from kvik.cache.saved import About, Saved, about, dump, load, restore, save
from kvik.cache.table import Sequence, State

__all__ = [
    "About",
    "KVCache",
    "PagePool",
    "Saved",
    "Sequence",
    "State",
    "about",
    "choose_slab",
    "dump",
    "load",
    "restore",
    "save",
]
