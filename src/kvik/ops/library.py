"""The loader is ``kvik.native``, which needs no torch."""

from kvik.native import ABI, candidates, library, select, set_threads, variant, variants

__all__ = ["ABI", "candidates", "library", "select", "set_threads", "variant", "variants"]
