"""The tokenizer in a GGUF file: byte-level BPE (``gpt2``) or SentencePiece (``llama``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from numbers import Real
from pathlib import Path
from re import Pattern
from typing import Any

from kvik.errors import ModelError
from kvik.models.bpe import PRE_TOKENIZERS, byte_alphabet, byte_level_bpe
from kvik.models.end_tokens import END_TOKENS
from kvik.models.library import LibraryBackend
from kvik.models.matcher import longest_match
from kvik.models.spm import SPACE, SentencePiece
from kvik.models.tokenizer import Backend, Vocabulary, require_text
from kvik.spec.gguf import read_header

KINDS = NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def read_gguf(path: Path) -> tuple[Backend, Vocabulary]:
    """The tokenizer of the file ``path``; ModelError says what it lacks or has too much of."""
    try:
        return _Metadata(read_header(path).metadata).build()
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


class _Metadata:
    """The ``tokenizer.*`` entries, checked as they are taken."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._all = metadata

    def build(self) -> tuple[Backend, Vocabulary]:
        model = self._get("model", str)
        if model == "gpt2":
            return self._byte_level()
        if model == "llama":
            return self._sentence_piece()
        raise ModelError(
            f"the tokenizer {model!r} is not supported; gpt2 (byte-level BPE) and llama "
            "(SentencePiece) are: use a folder with the model's tokenizer.json"
        )

    def _get(self, key: str, kind: type, default: Any = None) -> Any:
        value = self._all.get(f"tokenizer.ggml.{key}", default)
        if value is None:
            raise ModelError(f"tokenizer.ggml.{key} is missing: convert the model again")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ModelError(f"tokenizer.ggml.{key} is not {kind.__name__}: the file is damaged")
        return value

    def _array(
        self, key: str, of: type, length: int | None = None, default: Any = None
    ) -> list[Any]:
        """The array under ``key``; its entries have one type, for the format gives it one."""
        values = list(self._get(key, Sequence, default))
        if values and not isinstance(values[0], of):
            raise ModelError(
                f"tokenizer.ggml.{key} does not hold {of.__name__}: the file is damaged"
            )
        if length is not None and len(values) != length:
            raise ModelError(
                f"tokenizer.ggml.{key} has {len(values)} entries for {length} tokens: "
                "the file is damaged"
            )
        return values

    @cached_property
    def _tokens(self) -> list[str]:
        tokens = self._array("tokens", str)
        if not tokens:
            raise ModelError("tokenizer.ggml.tokens is empty: the file is damaged")
        return tokens

    @cached_property
    def _kinds(self) -> dict[int, dict[str, int]]:
        """Token to id, by the token's type."""
        tokens = self._tokens
        types = self._array("token_type", int, len(tokens), [NORMAL] * len(tokens))
        kinds: dict[int, dict[str, int]] = {kind: {} for kind in {*KINDS, *types}}
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True)):
            kinds[kind][token] = index
        # What ends a turn is control, whatever the file calls it: else users could write it.
        for token in END_TOKENS:
            for kind in (NORMAL, USER_DEFINED):
                if token in kinds[kind]:
                    kinds[CONTROL][token] = kinds[kind].pop(token)
        return kinds

    @cached_property
    def _control(self) -> dict[str, int]:
        return self._kinds[CONTROL] | self._kinds[UNKNOWN]

    def _id(self, key: str) -> int | None:
        """The id under ``{key}_token_id``, None where the file names none."""
        value = self._get(f"{key}_token_id", int, -1)
        if value in (-1, 0xFFFFFFFF):  # "none", in signed and unsigned fields
            return None
        if not 0 <= value < len(self._tokens):
            raise ModelError(
                f"tokenizer.ggml.{key}_token_id is {value}, but there are only "
                f"{len(self._tokens)} tokens: the file is damaged"
            )
        return int(value)

    def _vocabulary(
        self, spell: Callable[[int], bytes], adds_bos: bool, drop_space: bool = False
    ) -> Vocabulary:
        bos = self._id("bos")
        named = {self._id(key) for key in ("eos", "eot", "eom")}
        begin = self._get("add_bos_token", bool, adds_bos)
        template = self._all.get("tokenizer.chat_template")
        return Vocabulary(
            size=len(self._tokens),
            spell=spell,
            control=self._control,
            bos_id=bos,
            eos_id=self._id("eos"),
            eos_ids=frozenset(
                {index for index in named if index is not None}
                | {index for token, index in self._control.items() if token in END_TOKENS}
            ),
            prefix=(bos,) if begin and bos is not None else (),
            drop_space=drop_space,
            chat_template=require_text(template, "tokenizer.chat_template"),
        )

    def _byte_level(self) -> tuple[Backend, Vocabulary]:
        pre, tokens, ordinary = self._get("pre", str), self._tokens, self._kinds[NORMAL]
        backend = LibraryBackend(
            byte_level_bpe(
                tokens,
                self._array("merges", str),
                pre,
                control=list(self._control),
                whole=list(self._kinds[USER_DEFINED]),
            )
        )
        alphabet = byte_alphabet()

        def spell(index: int) -> bytes:
            token = tokens[index]
            if token in ordinary and alphabet.keys() >= set(token):
                return bytes(alphabet[char] for char in token)
            return token.encode()

        return backend, self._vocabulary(spell, adds_bos=PRE_TOKENIZERS[pre] == "llama3")

    def _sentence_piece(self) -> tuple[Backend, Vocabulary]:
        tokens = self._tokens
        scores = self._array("scores", Real, len(tokens))
        prefix = self._get("add_space_prefix", bool, True)
        as_byte = {index: _byte_of(token) for token, index in self._kinds[BYTE].items()}
        of_byte = {data: index for index, data in as_byte.items()}
        whole = len(of_byte) == 256
        model = SentencePiece(
            self._kinds[NORMAL],
            scores,
            [of_byte[bytes([byte])] for byte in range(256)] if whole else None,
            self._id("unknown"),
            prefix,
        )

        def spell(index: int) -> bytes:
            return as_byte.get(index) or tokens[index].replace(SPACE, " ").encode()

        backend = _SentencePieceBackend(model, self._control, self._kinds[USER_DEFINED])
        return backend, self._vocabulary(spell, adds_bos=True, drop_space=prefix)


def _byte_of(token: str) -> bytes:
    try:
        return bytes([int(token.removeprefix("<0x").removesuffix(">"), 16)])
    except ValueError as error:
        raise ModelError(f"{token!r} is marked as a byte, but is no <0xNN>") from error


class _SentencePieceBackend:
    """SentencePiece between the tokens that are matched whole."""

    def __init__(
        self, model: SentencePiece, control: Mapping[str, int], whole: Mapping[str, int]
    ) -> None:
        self._model = model
        self._ids = {**control, **whole}
        self._all: Pattern[str] = longest_match(self._ids)
        self._whole: Pattern[str] = longest_match(whole)

    def encode(self, text: str, special: bool) -> list[int]:
        """The ids of ``text``; ``whole`` tokens are matched with ``special`` off too."""
        ids: list[int] = []
        at = 0
        for match in (self._all if special else self._whole).finditer(text):
            ids += self._model.encode(text[at : match.start()])
            ids.append(self._ids[match[0]])
            at = match.end()
        return ids + self._model.encode(text[at:])
