"""SentencePiece's BPE: merge the neighbours whose joined piece scores highest, leftmost first.

This is the algorithm itself, over the vocabulary and scores of a GGUF file. The `tokenizers`
library would need the merges spelled out as a ranked list of pairs: half a million for Gemma,
seconds to derive and build on every start, and no longer the same rule where one piece can be cut
in two ways. Here loading is a dictionary, and words are remembered, so that text costs about a
microsecond a word.

Sentencepiece: https://arxiv.org/abs/1808.06226. BPE: https://arxiv.org/abs/1508.07909
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise

SPACE = "\u2581"  # how a space is spelled in the vocabulary
_WORDS = 1 << 16  # words remembered
_LONG = 64  # longer words are not: they hardly repeat


class SentencePiece:
    """Encode plain text, with no special tokens in it, to ids.

    ``ids``: piece -> id of the ordinary pieces; ``scores``: of every id, higher merges first;
    ``byte_ids``: the 256 ids that spell what no piece covers, or None where the vocabulary has
    none: then ``unknown`` stands for it. ``prefix``: put a space before the text.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        scores: Sequence[float],
        byte_ids: Sequence[int] | None,
        unknown: int | None,
        prefix: bool,
    ) -> None:
        self._ids = ids
        self._scores = scores
        self._byte_ids = byte_ids
        self._unknown = unknown
        self._prefix = prefix
        # No merge crosses a space unless a piece does. The few characters that stand before a
        # space inside some piece keep their words together; every other space is a safe cut.
        inside = [piece for piece in ids if piece.rfind(SPACE) > 0]
        joins = {left for piece in inside for left, right in pairwise(piece) if right == SPACE}
        glue = f"(?<![{''.join(map(re.escape, sorted(joins)))}])" if joins else ""
        self._cut = re.compile(f"(?!^){glue}(?={SPACE})")
        self._remembered = lru_cache(_WORDS)(self._merge)

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``; an empty text has none, not even the prefix."""
        if not text:
            return []
        text = (" " + text if self._prefix else text).replace(" ", SPACE)
        ids: list[int] = []
        for word in self._cut.split(text):
            ids += self._remembered(word) if len(word) <= _LONG else self._merge(word)
        return ids

    def _merge(self, word: str) -> tuple[int, ...]:
        ids, scores = self._ids, self._scores
        parts = list(word)
        after = [*range(1, len(parts)), -1]
        before = list(range(-1, len(parts) - 1))
        # (-score, left part, length of the joined piece): equal scores merge leftmost first.
        queue = [
            (-scores[ids[pair]], left, 2)
            for left, pair in enumerate(map("".join, pairwise(word)))
            if pair in ids
        ]
        heapify(queue)
        while queue:
            _, left, length = heappop(queue)
            right = after[left]
            # A part that was merged away is empty, one that grew no longer has this length.
            if right < 0 or not parts[left] or len(parts[left]) + len(parts[right]) != length:
                continue
            parts[left] += parts[right]
            parts[right] = ""
            end = after[left] = after[right]
            if end >= 0:
                before[end] = left
                piece = parts[left] + parts[end]
                if piece in ids:
                    heappush(queue, (-scores[ids[piece]], left, len(piece)))
            start = before[left]
            if start >= 0:
                piece = parts[start] + parts[left]
                if piece in ids:
                    heappush(queue, (-scores[ids[piece]], start, len(piece)))
        return tuple(token for part in parts if part for token in self._spell(part))

    def _spell(self, part: str) -> Sequence[int]:
        if part in self._ids:
            return (self._ids[part],)
        if self._byte_ids is not None:
            return [self._byte_ids[byte] for byte in part.encode()]
        return () if self._unknown is None else (self._unknown,)
