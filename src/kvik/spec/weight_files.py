"""What lies beside a config.json: the bytes of its weights, and how they were quantized."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kvik.errors import SpecError
from kvik.spec.fields import Fields
from kvik.spec.jsonfile import read_json

CONFIG, INDEX, QUANTIZED = "config.json", "model.safetensors.index.json", "hf_quant_config.json"
MOST_INDEX = 128 << 20  # bytes of an index; those of a thousand billion parameters take 20 MB
MOST_BYTES = 1 << 50
_PART = re.compile(r"-of-(\d{1,6})\.safetensors$")


def with_quantization(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """``values`` with what ModelOpt wrote into a file of its own."""
    beside = path.with_name(QUANTIZED)
    if path.name != CONFIG or "quantization_config" in values or not beside.is_file():
        return values
    return values | {"quantization_config": read_json(beside).get("quantization")}


def weights_beside(path: Path) -> int | None:
    """Bytes of the tensors that the safetensors files beside a config.json hold; None without.

    An index names the sum, whether or not all of its files are here.
    """
    if path.name != CONFIG:
        return None
    index = path.with_name(INDEX)
    if index.is_file():
        metadata = Fields(read_json(index, MOST_INDEX), str(index)).sub("metadata")
        if "total_size" in metadata:
            return _total(metadata)
    files = sorted(path.parent.glob("model*.safetensors"))
    parts = {int(part[1]) for file in files if (part := _PART.search(file.name))}
    if not files or (parts and parts != {len(files)}):
        return None
    return sum(_tensor_bytes(file) for file in files)


def _total(metadata: Fields) -> int:
    value = metadata.get("total_size")
    # Some writers have made it a float.
    if type(value) not in (int, float) or not 0 < value < MOST_BYTES:
        raise metadata.wrong("total_size", f"a number of bytes below {MOST_BYTES}")
    return int(value)


def _tensor_bytes(file: Path) -> int:
    """The file less its header, whose length comes first."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            header = int.from_bytes(opened.read(8), "little")
    except OSError as error:
        raise SpecError(f"{file}: cannot be read ({error.strerror or error})") from error
    if header > size - 8:
        raise SpecError(f"{file}: cut off: fetch it again")
    return size - 8 - header
