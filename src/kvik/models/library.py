"""The `tokenizers` library as a backend."""

from __future__ import annotations

from threading import Lock

from tokenizers import Tokenizer


class LibraryBackend:
    """One tokenizer behind a lock.

    Whether special tokens are matched is a setting of the library's object, not of a call; two
    threads must not meet there, or a user's text could be read with the other's setting.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = Lock()

    def encode(self, text: str, special: bool) -> list[int]:
        """The ids of ``text``; added tokens that are not special are matched in either case."""
        with self._lock:
            self._tokenizer.encode_special_tokens = not special
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
