"""Write tests/data/token_ids.json: the ids that llama.cpp and transformers give to fixed texts.

    python bench/token_ids.py --peer-python PYTHON smollm2-135m gemma3-270m

Run it with kvik and transformers installed; PYTHON is an interpreter that has llama-cpp-python.
The tests read the file and need neither. Made with transformers 5.24.0, tokenizers 0.23.3 and
llama-cpp-python 0.3.36; the file names the versions it was made with.

Each text is tokenized with special tokens on and off, without a beginning-of-text token. Long
lists of ids are kept as their number and SHA-256.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "tests" / "data" / "token_ids.json"
LONG = 400  # ids

# text, and how often it is repeated
TEXTS: dict[str, tuple[str, int]] = {
    "empty": ("", 1),
    "one space": (" ", 1),
    "english": ("The quick brown fox doesn't jump; I'VE seen it'll rest. It's 'quoted'.", 1),
    "leading space": ("  two spaces, then text ", 1),
    "korean": ("안녕하세요, 세계! 오늘은 날씨가 참 좋네요. ㅋㅋㅋ ㄱㄴㄷ", 1),
    "conjoining jamo": ("\u1112\u1161\u11ab\u1100\u1173\u11af", 1),
    "chinese": ("中文字符，没有空格的句子。", 1),
    "japanese": ("日本語のテキスト、カタカナとひらがな。", 1),
    "right to left": ("שלום עולם, مرحبا بالعالم", 1),
    "indic": ("नमस्ते दुनिया, வணக்கம்", 1),
    "python": ("def f(x: int) -> int:\n    if x:\n        return x**2  # ok\n\treturn -1\n", 1),
    "c": ('#include <stdio.h>\r\nint main(){printf("%d\\n", 0x1F);}\r\n', 1),
    "json": ('{"key": [1, 2.5e-3, null], "nested": {"a_b": "c-d"}}', 1),
    "url": ("https://example.org/a/b?c=d&e=%20f#g", 1),
    "emoji": ("👩‍👩‍👧‍👦 👍🏽 🇰🇷 ❤️ 1️⃣ 🏴󠁧󠁢󠁥󠁮󠁧󠁿", 1),
    "combining": ("e\u0301 n\u0303 o\u0308\u0304 Z\u0351\u036b\u0343\u036a", 1),
    "compatibility": ("ﬁ Ａ ㎏ ½ ² Ⅷ ٣ ǅ ß İ ſ", 1),
    "rare planes": ("𐍈 𝔘𝔫𝔦 𓀀 \U0010ffff \ue000", 1),
    "controls": ("\x00\x01\x07\x0b\x0c\x1b\x1f\x7f\x80\x85\x9f", 1),
    "byte-like": ("<0x00><0x41> \\xff\\xfe Ã© â‚¬ \ufffd\ufffd", 1),
    "invisible": ("\ufeffa\u200bb\u200cc\u200dd\u00ade\u2060f\u202eg", 1),
    "spaces of many kinds": ("a\u00a0b\u3000c\u2003d\u2009e\u2028f\u2029g", 1),
    "space runs": ("a" + "".join(" " * n + "b" for n in range(1, 32)), 1),
    "spaces at the end": ("a" + " " * 31, 1),
    "newline runs": ("a" + "".join("\n" * n + "b" for n in range(1, 32)), 1),
    "tab runs": ("a" + "".join("\t" * n + "b" for n in range(1, 32)), 1),
    "mixed white space": (" \n \n\n  \t\r\n\r\n \t \n", 1),
    "digits": ("0 12 123 1234 12345 1,234,567.89 3.14159 1e10 2024-11-29 00:00", 1),
    "punctuation": ("!!! ?!?! ... ---- ==== __init__ **bold** ~~~ ``` “q” ‘q’ — – …", 1),
    "contractions": ("I'm you're he'd WE'LL they'Ve don'T 's's o'clock ''s", 1),
    "repeats": ("aaaaaaaaaaaaaaa abababababab bananananana lololololol", 1),
    "spelled space": ("▁ ▁▁ a▁b Ġ Ċ Ġa", 1),
    "chatml": ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", 1),
    "gemma turns": ("<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", 1),
    "special in words": ("x<|im_end|>y <eos>z<bos> <|endoftext|>!<unused5><pad> <mask>", 1),
    "half special": ("<|im_end <|im_end| |im_end|> <|im_en\n<end_of_tur <start_of_turn", 1),
    "html": ("<table><tr><td>x</td></tr></table><br><b>y</b> <h1>z</h1>", 1),
    "end tags": ("<s>struck</s> </s>", 1),
    "many spaces": (" ", 40),
    "many newlines": ("\n", 40),
    "long word": ("x", 5000),
    "long prose": ("The rain in Spain stays mainly in the plain. ", 2000),
    "long korean": ("오늘도 내일도 비가 온다. ", 1000),
    "long bytes": ("𓀀", 1000),
}

# Run by the other interpreter: a GGUF path and [text, repeat] pairs in, ids out.
PEER = """
import ctypes, json, sys
import llama_cpp
quiet = llama_cpp.llama_log_callback(lambda *_: None)
llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
path, texts = json.load(sys.stdin)
model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
ids = [
    {kind: model.tokenize((text * times).encode(), add_bos=False, special=kind == "special")
     for kind in ("special", "plain")}
    for text, times in texts
]
print(json.dumps({"version": llama_cpp.__version__, "ids": ids}))
"""


def compact(ids: list[int]) -> list[int] | dict[str, Any]:
    """``ids`` themselves, or their number and digest where there are many."""
    if len(ids) <= LONG:
        return ids
    digest = hashlib.sha256(json.dumps(ids).encode()).hexdigest()
    return {"count": len(ids), "sha256": digest}


def layout(value: Any, depth: int = 0) -> str:
    """JSON with a line for each text, and for each text of each model."""
    if depth == 3 or not isinstance(value, dict):
        return json.dumps(value)
    inner = (f"{json.dumps(key)}: {layout(item, depth + 1)}" for key, item in value.items())
    return "{\n" + ",\n".join(inner) + "\n}"


def of_transformers(path: Path) -> list[dict[str, list[int]]]:
    """The ids by transformers' reading of the same GGUF file."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    return [
        {
            kind: tokenizer(
                text * times, add_special_tokens=False, split_special_tokens=kind == "plain"
            )["input_ids"]
            for kind in ("special", "plain")
        }
        for text, times in TEXTS.values()
    ]


def of_llama(path: Path, python: str) -> tuple[str, list[dict[str, list[int]]]]:
    """llama-cpp-python's version, and the ids by llama.cpp."""
    request = json.dumps([str(path), list(TEXTS.values())])
    done = subprocess.run([python, "-c", PEER], input=request, stdout=-1, text=True, check=True)
    reply = json.loads(done.stdout)
    return reply["version"], reply["ids"]


def main() -> None:
    """Ask both for every model and write the file."""
    from kvik.models.sources import resolve

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", required=True, help="has llama-cpp-python")
    parser.add_argument("models", nargs="+")
    options = parser.parse_args()
    made_with = {name: version(name) for name in ("transformers", "tokenizers")}
    models: dict[str, Any] = {}
    for name in options.models:
        path = resolve(name)
        made_with["llama-cpp-python"], llama = of_llama(path, options.peer_python)
        peers = {"llama.cpp": llama, "transformers": of_transformers(path)}
        models[name] = {
            text: {
                peer: {kind: compact(ids) for kind, ids in lists[at].items()}
                for peer, lists in peers.items()
            }
            for at, text in enumerate(TEXTS)
        }
        differing = [
            f"{text} ({kind})"
            for text, by_peer in models[name].items()
            for kind in ("special", "plain")
            if by_peer["llama.cpp"][kind] != by_peer["transformers"][kind]
        ]
        print(f"{name}: the two differ on {', '.join(differing) or 'nothing'}", file=sys.stderr)
    data = {"made_with": made_with, "texts": TEXTS, "models": models}
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(layout(data) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
