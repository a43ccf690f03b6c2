"""What every benchmark here shares: text, provenance, JSON lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from kvik.evaluate.provenance import command, environment
from kvik.evaluate.text import library_text
from kvik.models import Model, load_model

# Taken when the code is loaded: a long run must not record a later commit.
torch.set_num_threads(min(torch.get_num_threads(), 2))
ENV = environment(torch.get_num_threads()) | {
    "command": command("python", f"bench/{Path(sys.argv[0]).name}")
}


def start(model: str) -> tuple[Model, list[int]]:
    """The model and the token ids of the library's English text."""
    loaded = load_model(model)
    return loaded, loaded.tokenizer.encode(library_text())


def emit(out: Path, record: dict[str, Any]) -> None:
    """Prints a record and appends it, with its provenance, to a JSON-lines file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        file.write(json.dumps({**record, "env": ENV}) + "\n")
    print(json.dumps(record), flush=True)
