"""Token ids are those of llama.cpp and transformers; text comes back from them unchanged."""

from __future__ import annotations

import hashlib
import json
import re
import time
from functools import cache
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from kvik.errors import KvikError, ModelError
from kvik.models import sources
from kvik.models.bpe import PRE_TOKENIZERS, byte_alphabet
from kvik.models.matcher import longest_match
from kvik.models.spm import SentencePiece
from kvik.models.tokenizer import Tokenizer

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "token_ids.json").read_text())
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Characters with bytes that SmolLM2's vocabulary has no token for: 04 06 13 14 16 1D F1 F2.
MISSING = "[\x04\x06\x13\x14\x16\x1d\U00040000-\U000bffff]"

# Where the two disagree, which of them is right.
FOLLOWED = {
    # transformers does not cut digits apart for the pre-tokenizer `smollm`; the model's own
    # tokenizer.json and llama.cpp do. It shows on digits beyond 0 to 9 only.
    ("smollm2-135m", "compatibility"): "llama.cpp",
    # transformers merges runs of spaces pair by pair; SentencePiece, with which the model was
    # trained, and llama.cpp take the longest run there is a token for, and only of real spaces.
    ("gemma3-270m", "spelled space"): "llama.cpp",
    ("gemma3-270m", "many spaces"): "llama.cpp",
    # llama.cpp takes every `</s>` for the end of a text; in Gemma it is HTML.
    ("gemma3-270m", "end tags"): "transformers",
}


@cache
def real(name: str) -> Tokenizer:
    return Tokenizer.from_gguf(sources.resolve(name))


def compact(ids: list[int]) -> Any:
    if len(ids) <= 400:
        return ids
    digest = hashlib.sha256(json.dumps(ids).encode()).hexdigest()
    return {"count": len(ids), "sha256": digest}


@pytest.mark.model
@pytest.mark.parametrize("name", list(GOLDEN["models"]))
def test_ids_equal_llama_cpps_and_transformers(name: str) -> None:
    tokenizer = real(name)
    for title, by_peer in GOLDEN["models"][name].items():
        text, times = GOLDEN["texts"][title]
        for kind in ("special", "plain"):
            got = compact(tokenizer.encode(text * times, bos=False, special=kind == "special"))
            ids = {peer: by_kind[kind] for peer, by_kind in by_peer.items()}
            followed = FOLLOWED.get((name, title), "llama.cpp")
            assert got == ids[followed], (title, kind)
            assert (name, title) in FOLLOWED or ids["llama.cpp"] == ids["transformers"], title


@pytest.mark.model
@pytest.mark.parametrize("name", list(GOLDEN["models"]))
def test_decoding_gives_the_text_back(name: str) -> None:
    tokenizer = real(name)
    for title, (text, times) in GOLDEN["texts"].items():
        # Gemma's vocabulary has one spelling for a space and for U+2581.
        wanted = text.replace("\u2581", " ") if name.startswith("gemma") else text
        for special in (True, False):
            ids = tokenizer.encode(text * times, bos=False, special=special)
            assert tokenizer.decode(ids, skip_special=False) == wanted * times, title


@pytest.mark.model
@pytest.mark.parametrize("name", list(GOLDEN["models"]))
@given(text=st.text(max_size=40))
@settings(max_examples=100, deadline=None)
def test_any_text_survives_the_round_trip(name: str, text: str) -> None:
    tokenizer = real(name)
    if name == "smollm2-135m":
        # Its vocabulary has no token for some bytes; all three tokenizers leave them out.
        text = re.sub(MISSING, "", text)
    wanted = text.replace("\u2581", " ") if name.startswith("gemma") else text
    ids = tokenizer.encode(text, bos=False, special=False)
    assert tokenizer.decode(ids) == wanted
    assert not set(ids) & set(tokenizer.control.values())


@pytest.mark.model
def test_the_models_facts() -> None:
    smollm, gemma = real("smollm2-135m"), real("gemma3-270m")
    assert (smollm.bos_id, smollm.eos_ids, smollm.vocab_size) == (1, {0, 2}, 49152)
    assert (gemma.bos_id, gemma.eos_ids, gemma.vocab_size) == (2, {1, 106}, 262144)
    assert smollm.encode("") == []  # this model's texts have no beginning-of-text token
    assert gemma.encode("") == [2]
    assert gemma.encode("", bos=False) == []
    assert smollm.chat_template is not None
    assert gemma.chat_template is None
    assert smollm.decode([1, 19556, 2]) == "Hello"
    assert smollm.decode([1, 19556, 2], skip_special=False) == "<|im_start|>Hello<|im_end|>"


@pytest.mark.model
@pytest.mark.parametrize(("name", "seconds"), [("smollm2-135m", 0.5), ("gemma3-270m", 2.0)])
def test_loading_is_quick(name: str, seconds: float) -> None:
    path = sources.resolve(name)
    took = []
    for _ in range(3):
        start = time.process_time()
        Tokenizer.from_gguf(path)
        took.append(time.process_time() - start)
    assert min(took) < seconds


@pytest.mark.model
@pytest.mark.slow
def test_a_folder_saved_by_transformers_reads_the_same(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    path = sources.resolve("smollm2-135m")
    saved = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    saved.save_pretrained(tmp_path)
    ours, theirs = Tokenizer.from_folder(tmp_path), real("smollm2-135m")
    for fact in ("bos_id", "eos_ids", "vocab_size", "control", "chat_template", "drop_space"):
        assert getattr(ours, fact) == getattr(theirs, fact), fact
    for text, times in GOLDEN["texts"].values():
        for special in (True, False) if times == 1 else ():
            ids = saved(text, split_special_tokens=not special)["input_ids"]
            assert ours.encode(text, special=special) == ids
            assert ours.decode(ids, skip_special=False) == text


@pytest.mark.model
def test_threads_do_not_mix_up_special_and_plain() -> None:
    tokenizer = real("smollm2-135m")
    wanted = {special: tokenizer.encode("<|im_end|>", special=special) for special in (True, False)}
    faults: list[bool] = []

    def work(special: bool) -> None:
        for _ in range(500):
            if tokenizer.encode("<|im_end|>", special=special) != wanted[special]:
                faults.append(special)

    threads = [Thread(target=work, args=(at % 2 == 0,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


# A vocabulary made here, written to a file and read back.


def write(path: Path, **fields: Any) -> Path:
    """A GGUF file with nothing but tokenizer fields."""
    writer = GGUFWriter(path, "llama")
    for key, value in fields.items():
        name = "tokenizer.chat_template" if key == "chat_template" else f"tokenizer.ggml.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def sentence_piece(**changes: Any) -> dict[str, Any]:
    ordinary = ["\u2581", "a", "b", "c", "ab", "bc", "\u2581a", "aa", "aaa", "\u2581ab"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *ordinary, "[X]"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(ordinary), USER_DEFINED]
    scores = [0.0] * 259 + [-float(at) for at in range(len(ordinary))] + [0.0]
    fields = {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": scores,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return {key: value for key, value in (fields | changes).items() if value is not None}


def byte_level(**changes: Any) -> dict[str, Any]:
    tokens = [*byte_alphabet(), "ab", "Ġab", "<|end|>", "<think>"]
    types = [NORMAL] * 258 + [CONTROL, USER_DEFINED]
    fields = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": types,
        "merges": ["a b", "Ġ ab"],
        "eos_token_id": 258,
    }
    return {key: value for key, value in (fields | changes).items() if value is not None}


def pieces(tokenizer: Tokenizer, text: str, **options: bool) -> list[str]:
    ids = tokenizer.encode(text, **options)
    return [tokenizer.piece(token, skip_special=False).decode(errors="replace") for token in ids]


def test_a_sentencepiece_vocabulary_from_a_file(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(write(tmp_path / "t.gguf", **sentence_piece()))
    assert pieces(tokenizer, "ab c") == ["<s>", " ab", " ", "c"]
    assert pieces(tokenizer, "</s>[X]", bos=False) == ["</s>", "[X]"]
    plain = tokenizer.encode("</s>[X]", bos=False, special=False)
    assert tokenizer.control["</s>"] not in plain
    assert plain[-1] == tokenizer.vocab_size - 1
    assert tokenizer.decode(tokenizer.encode("é ab한")) == "é ab한"
    assert tokenizer.encode("", bos=False) == []
    off = Tokenizer.from_gguf(write(tmp_path / "u.gguf", **sentence_piece(add_space_prefix=False)))
    assert pieces(off, "ab c", bos=False) == ["ab", " ", "c"]


def test_a_byte_level_vocabulary_from_a_file(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(write(tmp_path / "t.gguf", **byte_level()))
    assert pieces(tokenizer, "ab ab<|end|><think>") == ["ab", " ab", "<|end|>", "<think>"]
    assert pieces(tokenizer, "<|end|><think>", special=False) == [*"<|end|>", "<think>"]
    assert tokenizer.decode(tokenizer.encode("é 한\x00")) == "é 한\x00"
    assert tokenizer.eos_ids == {258}


def test_what_ends_a_turn_is_special_whatever_the_file_calls_it(tmp_path: Path) -> None:
    types = [NORMAL] * 258 + [USER_DEFINED, USER_DEFINED]
    fields = byte_level(token_type=types, eos_token_id=None)
    tokenizer = Tokenizer.from_gguf(write(tmp_path / "t.gguf", **fields))
    assert tokenizer.eos_ids == {258}
    assert pieces(tokenizer, "<|end|>", special=False) == [*"<|end|>"]


def test_equal_neighbours_merge_leftmost_first() -> None:
    ids = {"a": 0, "aa": 1, "aaa": 2, "b": 3, "ab": 4}
    model = SentencePiece(ids, [0.0, -1.0, -2.0, 0.0, -1.0], None, 9, prefix=False)
    assert model.encode("aaaaa") == [1, 2]
    assert model.encode("aab") == [1, 3]
    assert model.encode("aacb") == [1, 9, 3]


@given(st.text("ab\u2581 c", max_size=24))
@settings(max_examples=300, deadline=None)
def test_merging_equals_the_rule_applied_step_by_step(text: str) -> None:
    """The best neighbours, leftmost of equals, looked for anew each time over the whole text."""
    names = [
        "a",
        "b",
        "\u2581",
        "ab",
        "ba",
        "\u2581a",
        "a\u2581",
        "\u2581\u2581",
        "aba",
        "b\u2581a",
    ]
    ids = {name: at for at, name in enumerate(names)}
    scores = [0.0, 0.0, 0.0, -1.0, -1.0, -2.0, -3.0, -2.5, -4.0, -0.5]
    parts = list(text.replace(" ", "\u2581"))
    while True:
        joined = [left + right for left, right in pairwise(parts)]
        found = [(-scores[ids[pair]], at) for at, pair in enumerate(joined) if pair in ids]
        if not found:
            break
        at = min(found)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    model = SentencePiece(ids, scores, None, 99, prefix=False)
    assert model.encode(text) == [ids.get(part, 99) for part in parts]


@given(st.lists(st.text("ab.|", min_size=1, max_size=4), max_size=6), st.text("ab.|", max_size=20))
@settings(max_examples=300, deadline=None)
def test_the_matcher_finds_the_longest_word_at_the_leftmost_place(
    words: list[str], text: str
) -> None:
    wanted, at = [], 0
    while at < len(text):
        best = max((word for word in words if text.startswith(word, at)), key=len, default="")
        wanted += [best] if best else []
        at += len(best) or 1
    assert longest_match(words).findall(text) == wanted


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({}, "tokenizer.ggml.model is missing"),
        ({"model": "bert"}, "'bert' is not supported"),
        (byte_level(pre="deepseek-v3"), "'deepseek-v3' is not supported"),
        (byte_level(pre="smolm"), r"nearest: smollm"),
        (byte_level(pre="tekken"), "'tekken' is not supported"),  # Mistral Nemo
        (byte_level(pre="gpt-4o"), "'gpt-4o' is not supported"),  # Phi-4 mini
        (byte_level(pre="dbrx"), "'dbrx' is not supported"),  # Phi-4
        (byte_level(pre=None), "tokenizer.ggml.pre is missing"),
        (byte_level(merges=None), "merges is missing"),
        (byte_level(merges=["a b", "no"]), "do not fit its vocabulary"),
        (byte_level(merges=["a zz"]), "do not fit its vocabulary"),
        (byte_level(tokens=["a", "b"], merges=["a b"]), "token_type has 260 entries for 2"),
        (byte_level(eos_token_id=260), "eos_token_id is 260"),
        (byte_level(eos_token_id="x"), "eos_token_id is not int"),
        (byte_level(chat_template=3), "chat_template must be text"),
        (byte_level(tokens=[1, 2], token_type=None), "does not hold str"),
        (byte_level(merges=[1, 2]), "does not hold str"),
        (byte_level(token_type=["x"] * 260), "does not hold int"),
        (sentence_piece(scores=["x"] * 270), "does not hold Real"),
        (sentence_piece(scores=None), "scores is missing"),
        (sentence_piece(scores=[1.0]), "scores has 1 entries"),
        (sentence_piece(token_type=[BYTE] * 270), "marked as a byte"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_in_one_line(
    fields: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "t.gguf", **fields)
    with pytest.raises(ModelError, match=fault) as caught:
        Tokenizer.from_gguf(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_or_with_a_broken_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model"')
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer.from_folder(tmp_path)


def test_text_and_ids_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(write(tmp_path / "t.gguf", **byte_level()))
    with pytest.raises(KvikError, match="character 1 of the text is half of a surrogate pair"):
        tokenizer.encode("a\ud800")
    for token in (-1, 260):
        with pytest.raises(KvikError, match="not in the vocabulary of 260 ids"):
            tokenizer.decode([0, token])


def test_every_known_pre_tokenizer_builds(tmp_path: Path) -> None:
    # Those of SmolLM2, SmolLM3 and Llama 3, Qwen2 and Qwen3.
    assert {"smollm", "llama-bpe", "qwen2"} <= PRE_TOKENIZERS.keys()
    for pre in PRE_TOKENIZERS:
        tokenizer = Tokenizer.from_gguf(write(tmp_path / "t.gguf", **byte_level(pre=pre)))
        text = "I'll  go\n\n at 12345½, ok?"
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_numbers_are_cut_as_each_family_does(tmp_path: Path) -> None:
    """With merges for digits, so that the cuts show."""
    tokens = [*byte_alphabet(), "12", "34", "123", "1234"]
    changes = {
        "tokens": tokens,
        "token_type": [NORMAL] * len(tokens),
        "eos_token_id": None,
        "merges": ["1 2", "3 4", "12 3", "12 34"],
    }
    wanted = {
        "gpt-2": ["1234"],
        "smollm": [*"1234"],
        "qwen2": [*"1234"],
        "llama-bpe": ["123", "4"],
    }
    for pre, cut in wanted.items():
        path = write(tmp_path / "t.gguf", **byte_level(pre=pre, **changes))
        assert pieces(Tokenizer.from_gguf(path), "1234", bos=False) == cut, pre


def test_numpy_ids_decode_too(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(write(tmp_path / "t.gguf", **byte_level()))
    assert tokenizer.decode(np.array(tokenizer.encode("ab ab"))) == "ab ab"
