"""JSON files that came from elsewhere: bounded in size and nesting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvik.errors import SpecError

MAX_BYTES = 16 << 20


def read_json(path: Path, most: int = MAX_BYTES) -> dict[str, Any]:
    """The object in the JSON file at ``path``, of at most ``most`` bytes; SpecError otherwise."""
    try:
        if path.exists() and not path.is_file():
            raise SpecError(f"{path}: not a regular file; copy it into one")
        if not path.is_file():
            raise SpecError(f"{path}: no such file")
        with path.open("rb") as file:
            # One byte more than allowed, and never the whole of a file that is too large.
            data = file.read(most + 1)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(data) > most:
        raise SpecError(f"{path}: larger than {most} bytes; that is no model description")
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise SpecError(f"{path}: nested too deeply") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: not JSON ({error})") from error
    except ValueError as error:
        # Python bounds the digits of an integer; what it says of that is for programmers.
        raise SpecError(f"{path}: holds a number with too many digits") from error
    if not isinstance(value, dict):
        raise SpecError(f"{path}: holds no JSON object")
    return value


def model_name(folder: Path) -> str:
    """The model's name: that of its folder, or org/name in the Hugging Face cache."""
    # The Hugging Face cache keeps org/name as models--org--name/snapshots/<commit>.
    owner = folder.parent.parent.name
    if folder.parent.name == "snapshots" and owner.startswith("models--"):
        return owner.removeprefix("models--").replace("--", "/")
    return folder.name
