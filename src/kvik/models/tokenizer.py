"""Text to token ids and back, from a GGUF file or from a folder with tokenizer.json.

    text -> [special tokens | the rest] -> ids      ids -> bytes -> text (U+FFFD for faults)

An id stands for bytes, not for characters: decoding joins the bytes of all ids and reads them as
UTF-8 once, so that a stream that waits for whole characters says the same as one decode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from re import Pattern
from typing import Protocol

from kvik.errors import KvikError, ModelError
from kvik.models.guard import Guard
from kvik.models.matcher import longest_match
from kvik.spec.load import is_config, locate


class Backend(Protocol):
    """What turns text into ids. ``special``: match control tokens; others are matched always."""

    def encode(self, text: str, special: bool) -> list[int]:
        """The ids of ``text``, without a beginning-of-text token."""


@dataclass(frozen=True)
class Vocabulary:
    """What the ids of a model stand for.

    ``size``: how many ids there are; ``spell``: the bytes of an id below it, None for an id that
    stands for nothing (a padded vocabulary);
    ``eos_id``: the one that the model's files name as the end of a text;
    ``control``: the special tokens by their text; ``prefix``: ids put before every text;
    ``drop_space``: the encoder puts a space before the text, and decoding takes it away again.
    """

    size: int
    spell: Callable[[int], bytes | None]
    control: Mapping[str, int]
    bos_id: int | None
    eos_ids: frozenset[int]
    prefix: tuple[int, ...]
    drop_space: bool
    chat_template: str | None
    eos_id: int | None = None


class Tokenizer:
    """A model's tokenizer; ids equal transformers' and llama.cpp's (tests/data/token_ids.json)."""

    def __init__(self, backend: Backend, vocabulary: Vocabulary) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        self._control_ids = frozenset(vocabulary.control.values())

    @classmethod
    def from_path(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of the model at ``path``, from the file that describes the model."""
        found = locate(path)
        return cls.from_folder(found.parent) if is_config(found) else cls.from_gguf(found)

    @classmethod
    def from_gguf(cls, path: str | Path) -> Tokenizer:
        """The tokenizer in the GGUF file ``path``; ModelError where it is not one kvik supports."""
        from kvik.models.tokenizer_gguf import read_gguf

        return cls(*read_gguf(Path(path)))

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of ``path``/tokenizer.json; ModelError where it is missing or broken."""
        from kvik.models.tokenizer_folder import read_folder

        return cls(*read_folder(Path(path)))

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return self._vocabulary.size

    @property
    def bos_id(self) -> int | None:
        """The beginning-of-text token, whether or not texts get one."""
        return self._vocabulary.bos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends a turn or a text."""
        return self._vocabulary.eos_ids

    @property
    def eos_id(self) -> int | None:
        """The id that the model's files name as the end of a text, if they name one."""
        return self._vocabulary.eos_id

    @property
    def drop_space(self) -> bool:
        """Whether decoding takes one space away from the start of a text."""
        return self._vocabulary.drop_space

    @property
    def chat_template(self) -> str | None:
        """The model's chat template (jinja2), where it has one."""
        return self._vocabulary.chat_template

    @property
    def control(self) -> Mapping[str, int]:
        """The special tokens: text to id."""
        return self._vocabulary.control

    @cached_property
    def control_pattern(self) -> Pattern[str]:
        """Matches any special token, the longest where several start together."""
        return longest_match(self._vocabulary.control)

    @cached_property
    def guard(self) -> Guard:
        """Keeps special tokens in messages from acting as such."""
        return Guard(self._vocabulary.control)

    def encode(self, text: str, *, bos: bool = True, special: bool = True) -> list[int]:
        """The ids of ``text``.

        ``bos``: begin with the beginning-of-text token if this model's texts have one.
        ``special``: special tokens written in the text become their ids; off, their letters are
        text like any other. KvikError on text that has no UTF-8 form.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise KvikError(
                f"character {error.start} of the text is half of a surrogate pair and has no "
                "UTF-8 form: decode the text with errors='replace' first"
            ) from error
        ids = self._backend.encode(text, special)
        return [*self._vocabulary.prefix, *ids] if bos else ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD."""
        data = b"".join(self.piece(token, skip_special=skip_special) for token in ids)
        if self.drop_space:
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")

    def piece(self, token: int, *, skip_special: bool = True) -> bytes:
        """The bytes that id ``token`` stands for, none for a special token that is skipped.

        KvikError where the vocabulary has no such id.
        """
        size = self._vocabulary.size
        piece = self._vocabulary.spell(token) if 0 <= token < size else None
        if piece is None:
            raise KvikError(
                f"token {token} is not in the vocabulary of {size} ids: "
                "were these ids made for another model?"
            )
        return b"" if skip_special and token in self._control_ids else piece


def require_text(value: object, what: str) -> str | None:
    """``value`` if it is text or absent; ModelError names ``what`` otherwise."""
    if value is None or isinstance(value, str):
        return value
    raise ModelError(f"{what} must be text, not {type(value).__name__}: the file is damaged")
