"""How a document and a question about it are put to a model.

Models with a chat template are asked in it, others complete plain text; in both cases the first
words of the answer are given, so that only what was hidden is the model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from kvik.errors import KvikError
from kvik.evaluate.prompts import chat_prompt

if TYPE_CHECKING:
    from kvik.models.tokenizer import Tokenizer


class Spelling:
    """Documents with questions as token ids. ``early``: the question stands before them too."""

    def __init__(self, tokenizer: Tokenizer, *, early: bool = False) -> None:
        self._tokenizer, self._early = tokenizer, early
        self._chat = chat_prompt(tokenizer)

    @cached_property
    def template(self) -> str:
        """The whole prompt of an example, as text: what a reader needs to judge a figure."""
        return self.text("{document}", "{question}", "{lead}")

    def text(self, document: str, question: str, lead: str) -> str:
        """A prompt as the model reads it."""
        return self._tokenizer.decode(self.prompt(document, question, lead), skip_special=False)

    def prompt(self, document: str, question: str, lead: str) -> list[int]:
        """Token ids up to where the answer begins."""
        before = f"{question}\n\n" if self._early else ""
        text = f"{before}{document}\n\n"
        if self._chat is None:
            plain = f"{text}Question: {question}\nAnswer: {lead}"
            return self._tokenizer.encode(plain, bos=True, special=False)
        tail = self._tokenizer.encode(lead, bos=False, special=False)
        return self._chat(text + question) + tail

    def answer(self, lead: str, text: str) -> list[int]:
        """Token ids of an answer that goes on after its first words."""
        encode = self._tokenizer.encode
        known = encode(lead, bos=False, special=False)
        whole = encode(f"{lead} {text}", bos=False, special=False)
        if whole[: len(known)] != known or len(whole) == len(known):
            raise KvikError(
                f"this tokenizer does not spell {text!r} apart from {lead!r}: leave this task out"
            )
        return whole[len(known) :]

    def document(self, noise: Sequence[int], facts: Sequence[tuple[float, str]]) -> str:
        """A text with facts at shares of its tokens, each in a paragraph of its own."""
        parts, at = [], 0
        for depth, fact in sorted(facts, key=lambda fact: fact[0]):
            cut = round(depth * len(noise))
            parts += [self._tokenizer.decode(noise[at:cut]), fact]
            at = cut
        parts.append(self._tokenizer.decode(noise[at:]))
        return "\n\n".join(part for part in parts if part)

    def fit(
        self,
        noise: Sequence[int],
        facts: Sequence[tuple[float, str]],
        question: str,
        lead: str,
        context: int,
    ) -> list[int]:
        """A prompt of at most ``context`` tokens with all facts and as much noise as there is room.

        KvikError when hardly any noise fits.
        """
        room = context - len(self.prompt(self.document([], facts), question, lead))
        while room >= 16:
            ids = self.prompt(self.document(noise[:room], facts), question, lead)
            if len(ids) <= context:
                return ids
            room -= len(ids) - context  # tokens merge differently at the seams
        raise KvikError("there is no room for the text: give a larger --context")
