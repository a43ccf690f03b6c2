"""A chat whose history stays in the cache: each turn feeds only what the cache does not have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvik.engine.identity import common_prefix

if TYPE_CHECKING:
    from kvik.engine.session import Session
    from kvik.models.tokenizer import Tokenizer

Message = dict[str, str]
Spell = Callable[[list[Message]], list[int]]


def chat_spelling(tokenizer: Tokenizer) -> Spell | None:
    """Messages to ids by the model's chat template, up to where the answer begins; None without."""
    template = tokenizer.chat_template
    if template is None:
        return None
    from kvik.models.chat import render_ids

    return lambda messages: render_ids(tokenizer, template, messages)


def plain_spelling(tokenizer: Tokenizer) -> Spell:
    """Messages to ids as one running text, for models without a chat template.

    What the user adds after an answer begins on a new line.
    """

    def spell(messages: list[Message]) -> list[int]:
        parts = [
            ("\n" if at and message["role"] == "user" else "") + message["content"]
            for at, message in enumerate(messages)
        ]
        return tokenizer.encode("".join(parts), bos=True, special=False)

    return spell


class Conversation:
    """Messages, and the tokens that stand for them in a session."""

    def __init__(
        self, session: Session, tokenizer: Tokenizer, spell: Spell, *, system: str | None = None
    ) -> None:
        self._session, self._tokenizer, self._spell = session, tokenizer, spell
        self._opening: list[Message] = [{"role": "system", "content": system}] if system else []
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self._session.trim(0)
        self.messages: list[Message] = list(self._opening)
        self._ids: list[int] = []  # what the cache holds or still has to be fed
        self._spelled: list[int] = []  # the same text as the spelling has it; empty: unknown

    def ask(self, text: str) -> list[int]:
        """Add the user's message; the ids to feed before the answer can be sampled."""
        self.messages.append({"role": "user", "content": text})
        full = self._spell(self.messages)
        known = len(self._spelled)
        if known and full[:known] == self._spelled and len(full) > known:
            self._ids += full[known:]
        else:
            # The first turn; or the template rewrote the history, or the answer's tokens are not
            # its text (a stop string cut it): keep what still agrees.
            self._session.trim(common_prefix(full[:-1], self._session.tokens))
            self._ids = full
        self._spelled = full
        return self._ids[len(self._session.tokens) :]

    def answer(self, text: str, tokens: Sequence[int]) -> None:
        """Add the model's message, sampled as ``tokens`` (without the one that ended it).

        The model may have spelled its answer with other tokens than the tokenizer would: the
        cache keeps the model's.
        """
        self.messages.append({"role": "assistant", "content": text})
        self._ids = self._ids + list(tokens)
        if self._tokenizer.decode(tokens) == text:
            spelled = self._tokenizer.encode(text, bos=False, special=False)
            self._spelled = self._spelled + spelled
        else:
            self._spelled = []
