"""Find words of a fixed list in a text: leftmost first, and the longest that starts there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kvik.errors import ModelError

# Each character nests one level deeper; no honest marker is a sentence long.
MAX_WORD = 200


def longest_match(words: Iterable[str], flags: int = 0) -> re.Pattern[str]:
    """A pattern that matches any of ``words``, the longest where several start together.

    It follows the words' common prefixes, so 6,000 words that begin with ``<unused`` cost no more
    to try than one. With no words it matches nowhere. ModelError on a word over MAX_WORD long.
    """
    root: dict[str, Any] = {}
    for word in filter(None, words):
        if len(word) > MAX_WORD:
            raise ModelError(
                f"the special token {word[:20]!r}... has {len(word)} characters; at most "
                f"{MAX_WORD} are supported: the tokenizer's file is damaged or not one of text"
            )
        node = root
        for char in word:
            node = node.setdefault(char, {})
        node[""] = True
    return re.compile(_alternatives(root) if root else "(?!)", flags)


def _alternatives(node: dict[str, Any]) -> str:
    branches = [re.escape(char) + _tail(child) for char, child in node.items() if char]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _tail(node: dict[str, Any]) -> str:
    if len(node) == 1 and "" in node:
        return ""
    inner = _alternatives(node)
    return f"(?:{inner})?" if "" in node else inner
