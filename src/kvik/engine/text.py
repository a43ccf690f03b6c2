"""Ids to text as they come: whole characters only, and nothing past a stop string."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence

from kvik.errors import KvikError
from kvik.models.tokenizer import Tokenizer

_DECODER = getincrementaldecoder("utf-8")


class TextStream:
    """The text of a growing list of ids, handed out as soon as it is certain.

    All pieces together are ``tokenizer.decode(ids)``, cut where the first stop string begins. A
    piece never ends inside a character, nor with what may be the beginning of a stop string.
    ``stopped`` turns true once the cut is certain: where an earlier and longer stop string may
    still be completed, that is some tokens after a shorter one was.

    ``continues``: the text goes on from a prompt, so that a space at its start is kept where
    decoding would drop it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        skip_special: bool = True,
        continues: bool = False,
    ) -> None:
        if isinstance(stop, str):
            raise KvikError(f"stop strings come as a list: write [{stop!r}]")
        if not all(stop):
            raise KvikError("an empty stop string would stop before the first token: leave it out")
        self.stopped = False
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._skip_special = skip_special
        self._drop_space = tokenizer.drop_space and not continues
        self._decoder = _DECODER(errors="replace")
        self._held = ""

    def fork(self) -> TextStream:
        """A stream that stands where this one does and goes on by itself."""
        twin = object.__new__(TextStream)
        twin.__dict__.update(self.__dict__)
        twin._decoder = _DECODER(errors="replace")
        twin._decoder.setstate(self._decoder.getstate())
        return twin

    def push(self, token: int) -> str:
        """The text that is certain now that ``token`` has come; none once stopped."""
        if self.stopped:
            return ""
        data = self._tokenizer.piece(token, skip_special=self._skip_special)
        if data and self._drop_space:
            data = data.removeprefix(b" ")
            self._drop_space = False
        return self._release(self._decoder.decode(data))

    def finish(self) -> str:
        """What was held back, now that no more ids come. Ends the stream.

        ``stopped`` turns true if a complete stop string was held back.
        """
        if self.stopped:
            return ""
        text = self._release(self._decoder.decode(b"", final=True))
        cut = self._complete()  # held back for a longer one that did not come
        if cut is not None:
            self.stopped = True
        text, self._held = text + self._held[:cut], ""
        return text

    def _release(self, text: str) -> str:
        """Take ``text`` in; hand out what comes before any stop string, begun or complete."""
        if not text:
            return ""
        self._held += text
        complete, begun = self._complete(), self._begun()
        end = min(begun, len(self._held) if complete is None else complete)
        self.stopped = end == complete
        text, self._held = self._held[:end], "" if self.stopped else self._held[end:]
        return text

    def _complete(self) -> int | None:
        """Where the first complete stop string begins."""
        starts = (self._held.find(stop) for stop in self._stop)
        return min((start for start in starts if start >= 0), default=None)

    def _begun(self) -> int:
        """Where the first stop string begins of which only the beginning is here."""
        longest = max(map(len, self._stop), default=1)
        for start in range(max(0, len(self._held) - longest + 1), len(self._held)):
            tail = self._held[start:]
            if any(len(tail) < len(stop) and stop.startswith(tail) for stop in self._stop):
                return start
        return len(self._held)
