"""Keep the text of special tokens inside messages from acting as special tokens.

A message goes through the chat template before it becomes ids, and the template may trim, cut,
join or escape it. So each special token in a message is *broken* by a mark: one character that is
in no message and that the template cannot know. It stays where it is whatever happens around it.
What is still whole after rendering is the template's own and becomes an id; the rest loses its
marks and is read as plain text.

Broken are special tokens in any case of letters, and halves at either end of a text, for templates
join texts: ``<|im_`` and ``end|>`` are two harmless parts of one message.

To be sure, the caller also renders *blank* messages, where these texts are crossed out: if the
special tokens then differ, the template makes some of what messages say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from itertools import pairwise
from typing import Any, NamedTuple

from kvik.models.matcher import longest_match


class _Span(NamedTuple):
    """Characters ``start`` to ``end`` are a token or half of one; a mark at ``cut`` breaks it."""

    start: int
    end: int
    cut: int


class Guard:
    """Finds, breaks and blanks out ``tokens`` in the texts of messages."""

    def __init__(self, tokens: Collection[str]) -> None:
        # In a lookahead, so that a token that begins inside another is found too.
        self._whole = re.compile(f"(?=({longest_match(tokens).pattern}))", re.IGNORECASE)
        folded = [token.casefold() for token in tokens]
        self._heads = {token[:length] for token in folded for length in range(1, len(token))}
        self._tails = {token[-length:] for token in folded for length in range(1, len(token))}
        self._longest = max(map(len, folded), default=0)

    def finds(self, messages: Any) -> bool:
        """Whether any text holds a special token, or what may be half of one."""
        if isinstance(messages, str):
            return bool(self._spans(messages))
        if isinstance(messages, dict):
            return any(map(self.finds, (*messages, *messages.values())))
        return isinstance(messages, list) and any(map(self.finds, messages))

    def broken(self, messages: Any, mark: str) -> Any:
        """``messages`` with ``mark`` inside every special token and half of one."""

        def change(text: str) -> str:
            cuts = sorted({span.cut for span in self._spans(text)})
            return mark.join(text[start:end] for start, end in pairwise([0, *cuts, len(text)]))

        return _map_texts(messages, change)

    def blank(self, messages: Any) -> Any:
        """``messages`` with every special token and half of one crossed out, at the same length."""

        def change(text: str) -> str:
            letters = list(text)
            for span in self._spans(text):
                letters[span.start : span.end] = "x" * (span.end - span.start)
            return "".join(letters)

        return _map_texts(messages, change)

    def _spans(self, text: str) -> list[_Span]:
        spans = [
            _Span(found.start(1), found.end(1), found.start(1) + 1)
            for found in self._whole.finditer(text)
        ]
        # Templates trim: the ends are those of the text without white space around it.
        start, end = len(text) - len(text.lstrip()), len(text.rstrip())
        lengths = range(min(self._longest, end - start), 0, -1)
        for length in lengths:
            if text[start : start + length].casefold() in self._tails:
                spans.append(_Span(start, start + length, start + length - 1))
                break
        for length in lengths:
            if text[end - length : end].casefold() in self._heads:
                spans.append(_Span(end - length, end, end - length + 1))
                break
        return spans


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """``value`` with every text in it changed, keys too; roles are left: they are from a list."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {
            change(key): item if key == "role" else _map_texts(item, change)
            for key, item in value.items()
        }
    return [_map_texts(item, change) for item in value] if isinstance(value, list) else value
