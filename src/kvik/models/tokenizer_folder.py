"""The tokenizer of a model folder: tokenizer.json, and the settings files beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from kvik.errors import ModelError
from kvik.models.bpe import byte_alphabet
from kvik.models.end_tokens import END_TOKENS
from kvik.models.library import LibraryBackend
from kvik.models.spm import SPACE
from kvik.models.tokenizer import Backend, Vocabulary, require_text
from kvik.spec.jsonfile import read_json

MAX_BYTES = 256 << 20  # Gemma's tokenizer.json has 33 MB


def read_folder(folder: Path) -> tuple[Backend, Vocabulary]:
    """The tokenizer of ``folder``; ModelError where its files are missing or broken."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"{folder} has no tokenizer.json: save the model's fast tokenizer there")
    # The library raises bare Exception.
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        raise ModelError(f"{file} cannot be read ({error}): fetch it again") from error
    try:
        return LibraryBackend(tokenizer), _vocabulary(folder, tokenizer, _json(file))
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from error


def _vocabulary(folder: Path, tokenizer: Tokenizer, layout: dict[str, Any]) -> Vocabulary:
    config = _json(folder / "tokenizer_config.json")
    by_text = tokenizer.get_vocab(with_added_tokens=True)
    by_id = {index: token for token, index in by_text.items()}
    added = tokenizer.get_added_tokens_decoder()
    spell = _speller(_steps(layout.get("decoder")), by_id, added.keys())
    bos_text = _text(config.get("bos_token"), "bos_token")
    eos_text = _text(config.get("eos_token"), "eos_token")
    control = {token.content: index for index, token in added.items() if token.special}
    control |= {text: by_text[text] for text in END_TOKENS if text in by_text}
    generation = _json(folder / "generation_config.json").get("eos_token_id")
    listed = generation if isinstance(generation, list) else [generation]
    ends = {by_text[text] for text in END_TOKENS | {eos_text} if text in by_text}
    return Vocabulary(
        size=max(by_id, default=-1) + 1,
        spell=spell,
        control=control,
        bos_id=by_text.get(bos_text or ""),
        eos_id=by_text.get(eos_text or ""),
        eos_ids=frozenset(ends | {index for index in listed if type(index) is int}),
        prefix=_prefix(tokenizer),
        drop_space=_drops_space(layout),
        chat_template=_template(folder, config),
    )


def _speller(
    steps: list[dict[str, Any]], by_id: Mapping[int, str], added: Any
) -> Callable[[int], bytes | None]:
    """How an id becomes bytes, by the kind of decoder that the file asks for."""
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        alphabet = byte_alphabet()

        def spell(index: int) -> bytes | None:
            token = by_id.get(index)
            if token is None or index in added or not alphabet.keys() >= set(token):
                return None if token is None else token.encode()
            return bytes(alphabet[char] for char in token)

        return spell
    if kinds & {"ByteFallback", "Metaspace"}:

        def spell_piece(index: int) -> bytes | None:
            token = by_id.get(index)
            if token is None:
                return None
            if len(token) == 6 and token.startswith("<0x") and index not in added:
                return bytes.fromhex(token[3:5])
            return token.replace(SPACE, " ").encode()

        return spell_piece
    raise ModelError(
        f"its decoder ({', '.join(sorted(map(str, kinds))) or 'none'}) is not supported; "
        "byte-level and SentencePiece vocabularies are"
    )


def _steps(part: dict[str, Any] | None, key: str = "decoders") -> list[dict[str, Any]]:
    """The steps of a part of tokenizer.json: those of a sequence, or the part itself."""
    return list(part.get(key) or [part]) if part else []


def _drops_space(layout: dict[str, Any]) -> bool:
    """Whether decoding strips the space that encoding put before the text."""
    return any(
        (step.get("type") == "Strip" and step.get("content") == " " and step.get("start"))
        or (step.get("type") == "Metaspace" and step.get("prepend_scheme") != "never")
        for step in _steps(layout.get("decoder"))
    )


def _prefix(tokenizer: Tokenizer) -> tuple[int, ...]:
    """What the post-processor puts before a text: the ids left of a probe's own."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    framed = tokenizer.encode("a", add_special_tokens=True).ids
    starts = range(len(framed) - len(plain) + 1)
    at = next((at for at in starts if framed[at : at + len(plain)] == plain), 0)
    return tuple(framed[:at])


def _template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"chat_template.jinja cannot be read ({error})") from error
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        found = dict(_named(found)).get("default")
    return require_text(found, "chat_template")


def _named(templates: list[Any]) -> Iterator[tuple[Any, Any]]:
    for entry in templates:
        if isinstance(entry, dict):
            yield entry.get("name"), entry.get("template")


def _text(token: Any, what: str) -> str | None:
    return require_text(token.get("content") if isinstance(token, dict) else token, what)


def _json(file: Path) -> dict[str, Any]:
    """The object in ``file``, an empty one where there is no such file."""
    return read_json(file, MAX_BYTES) if file.is_file() else {}
