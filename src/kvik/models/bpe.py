"""Byte-level BPE from a GGUF file's metadata, on the `tokenizers` library.

Text is cut into words by the regular expressions the vocabulary was trained with, which the file
only names (``tokenizer.ggml.pre``); merges then run inside words. A wrong cut gives plausible ids
that the model never saw, so an unknown name is refused.
Byte-level BPE: https://openai.com/index/better-language-models (GPT-2)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Split
from tokenizers.pre_tokenizers import Sequence as Chain

from kvik.errors import ModelError

_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = rf"{_HEAD}|\p{{N}}{{1,3}}{_TAIL}"
_QWEN2 = rf"{_HEAD}|\p{{N}}{_TAIL}"

_FAMILIES = {
    "gpt-2": ("gpt-2", "phi-2"),
    # Every digit by itself, then as GPT-2.
    "digits": ("smollm", "starcoder", "refact", "command-r"),
    "llama3": ("llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2"),
    "qwen2": ("qwen2", "deepseek-r1-qwen"),
}
PRE_TOKENIZERS = {name: family for family, names in _FAMILIES.items() for name in names}


def byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of the 256 bytes: printable Latin-1 as itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    spelled = {chr(byte): byte for byte in printable}
    return spelled | {chr(0x100 + at): byte for at, byte in enumerate(hidden)}


def byte_level_bpe(
    tokens: Sequence[str],
    merges: Iterable[str],
    pre: str,
    control: Sequence[str],
    whole: Sequence[str],
) -> Tokenizer:
    """The tokenizer of a vocabulary; ``tokens`` are in id order, ``merges`` are "left right".

    ``control`` tokens are matched in text only when special tokens are asked for, ``whole`` ones
    always. ModelError on an unknown ``pre`` or on merges that the vocabulary does not hold.
    """
    family = family_of(pre)
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    # These vocabularies hold whole words that no chain of merges reaches.
    try:
        model = BPE(vocabulary, pairs, ignore_merges=family == "llama3")
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"the file's merges do not fit its vocabulary ({error})") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _pre_tokenizer(family)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in whole])
    return tokenizer


def family_of(pre: str) -> str:
    """The family of rules that ``pre`` names; ModelError where kvik does not know it."""
    if pre in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[pre]
    near = get_close_matches(pre, PRE_TOKENIZERS, 1)
    hint = f" (nearest: {near[0]})" if near else ""
    raise ModelError(
        f"the pre-tokenizer {pre!r} is not supported{hint}; supported are "
        f"{', '.join(sorted(PRE_TOKENIZERS))}: use a folder with the model's tokenizer.json"
    )


def _pre_tokenizer(family: str) -> ByteLevel | Chain:
    if family == "gpt-2":
        return ByteLevel(add_prefix_space=False)
    if family == "digits":
        return Chain([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    pattern = _LLAMA3 if family == "llama3" else _QWEN2
    return Chain(
        [
            Split(Regex(pattern), "isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
