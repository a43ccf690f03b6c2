"""Where the text of ``kvik run`` comes from: the argument, a file, or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from kvik.errors import KvikError
from kvik.evaluate.text import decode_text, read_bounded, read_text


def read_prompt(argument: str | None, file: str | None) -> str | None:
    """The prompt; None where a person sits at the terminal and gave none.

    Raises KvikError on an empty prompt, on two of them, on one too large, and on bytes
    that are not UTF-8.
    """
    if argument is not None and file is not None:
        raise KvikError("a prompt and --file were both given: give one of them")
    if file is not None:
        return read_text(Path(file))
    if argument is not None:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise KvikError("the prompt is not UTF-8 text: check the terminal's encoding") from None
        text, source = argument, "the prompt"
    elif sys.stdin is None or sys.stdin.isatty():
        return None
    else:
        source = "standard input"
        text = decode_text(read_bounded(sys.stdin.buffer, source), source)
    if not text.strip():
        raise KvikError(f"{source} is empty: give some text to answer or to continue")
    return text
