"""A model's identity: a digest of everything that decides which K and V a token gets.

Caches that outlive a process or a request carry it: K and V of one model mean nothing to another,
even to a fine-tune of the same name and shape.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvik.models.decoder import Decoder
from kvik.ops.native_linear import Packed
from kvik.spec import ModelSpec
from kvik.spec.load import is_config, locate

DOMAIN = b"kvik model 1\0"


@dataclass(frozen=True)
class WeightFile:
    """A file and what tells that it is still the same one; the path does not count."""

    path: Path = field(compare=False)
    device: int
    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, path: Path) -> WeightFile:
        """The file as it is now."""
        now = path.stat()
        return cls(path, now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns)

    def unchanged(self) -> bool:
        """Whether the path still leads to this file as it was."""
        try:
            return WeightFile.of(self.path) == self
        except OSError:
            return False


@dataclass(frozen=True)
class Origin:
    """Where a decoder's weights were read from: it speaks for that decoder and no other."""

    files: tuple[WeightFile, ...]
    decoder: Decoder


def weight_files(path: Path) -> tuple[WeightFile, ...]:
    """The files with the weights of the model at ``path``, in the order of their names."""
    # Here and not above: a random model needs no reader of files.
    from kvik.models.safetensors_weights import shards

    found = locate(path)
    paths = sorted(shards(found.parent)) if is_config(found) else [found]
    return tuple(WeightFile.of(p) for p in paths)


def identity(spec: ModelSpec, decoder: Decoder, origin: Origin | None) -> bytes:
    """32 bytes over the description, what is computed in, and the weights.

    The weights count by the bytes of their files, wherever those lie (about 0.1 s for 100 MB, once
    in a process); without files, or once these have changed on disk, by the decoder's tensors.
    Names and paths do not count.
    """
    described = asdict(spec)
    del described["name"]
    text = json.dumps([described, decoder.arithmetic], sort_keys=True).encode()
    content = _of_files(origin.files) if origin and origin.decoder is decoder else None
    content = content or b"tensors\0" + _of_tensors(decoder)
    return hashlib.sha256(DOMAIN + len(text).to_bytes(8, "little") + text + content).digest()


def _of_files(files: tuple[WeightFile, ...]) -> bytes | None:
    """Digests of the files; None when one is no longer what it was."""
    try:
        digests = [_file_digest(file) for file in files if file.unchanged()]
    except OSError:
        return None
    whole = len(digests) == len(files) and all(file.unchanged() for file in files)
    return b"files\0" + b"".join(digests) if whole else None


@lru_cache(maxsize=1024)
def _file_digest(file: WeightFile) -> bytes:
    with file.path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()


def _of_tensors(decoder: Decoder) -> bytes:
    hasher = hashlib.sha256()
    for kind, tensor in _tensors(decoder):
        hasher.update(f"{kind} {list(tensor.shape)}\0".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        hasher.update(values.numpy().data)
    return hasher.digest()


def _tensors(part: Any) -> Iterator[tuple[str, Tensor]]:
    """What it holds and every tensor of nested dataclasses and tuples, in the order of fields."""
    if isinstance(part, Tensor):
        yield str(part.dtype), part
    elif isinstance(part, Packed):
        yield f"{part.type} {part.shape} {part.unit}", part.data
    elif isinstance(part, tuple):
        for item in part:
            yield from _tensors(item)
    elif is_dataclass(part):
        for f in fields(part):
            yield from _tensors(getattr(part, f.name))
