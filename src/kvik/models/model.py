"""A model as the engine knows it: what it is, what it computes, how it spells."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvik import native
from kvik.errors import ModelError
from kvik.machine import threads
from kvik.models.decoder import Decoder
from kvik.models.identity import Origin, identity, weight_files
from kvik.models.parts import Numbers, StepCache
from kvik.ops.native_linear import Packed
from kvik.spec import ModelSpec, load_spec

if TYPE_CHECKING:
    from kvik.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Model:
    """A decoder and its description; the tokenizer is read from ``path`` when first asked for."""

    name: str
    spec: ModelSpec
    decoder: Decoder
    path: Path | None = None
    origin: Origin | None = field(default=None, repr=False, compare=False)

    def forward(
        self, tokens: Numbers, positions: Numbers, cache: StepCache, rows: Tensor | None = None
    ) -> Tensor:
        """Logits of a flat ragged batch; see ``Decoder.forward``."""
        return self.decoder.forward(tokens, positions, cache, rows)

    def use_threads(self, count: int) -> None:
        """Compute with so many threads from now on, in the whole process.

        Beside the native library's, torch keeps one thread: its others would spin, between native
        calls, on the cores that these need.
        """
        if (lib := native.library()) is not None:
            native.set_threads(lib, count)
        torch.set_num_threads(1 if isinstance(self.decoder.embed, Packed) else count)

    @cached_property
    def identity(self) -> bytes:
        """32 bytes that differ between models that give a token other K and V.

        Covers the description, the weights' content and the dtype; not names and paths.
        """
        return identity(self.spec, self.decoder, self.origin)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's own tokenizer; ModelError for a model without files."""
        if self.path is None:
            raise ModelError(f"the model {self.name!r} has no files and so no tokenizer")
        from kvik.models.tokenizer import Tokenizer

        return Tokenizer.from_path(self.path)

    @property
    def eos_ids(self) -> frozenset[int]:
        """Token ids that end a turn or a text; none for a model without files."""
        return frozenset() if self.path is None else self.tokenizer.eos_ids

    @property
    def chat_template(self) -> str | None:
        """The jinja2 source that lays out a chat, if the model has one."""
        return None if self.path is None else self.tokenizer.chat_template


def load_model(
    name_or_path: str | Path, *, dense: bool = False, context: int | None = None
) -> Model:
    """Load a built-in name, a GGUF file, a safetensors folder or a Hugging Face repo id.

    Its matrices stay in the types of the file, packed for the native library; without the library,
    or with ``dense``, they become float32 tensors.

    ``context``: texts will have at most so many tokens. Only models with LongRoPE (Phi-3) differ by
    it: up to the length they were first trained for, they have RoPE factors of their own.

    Threads are cut to the cores that affinity and cgroup quota leave: more threads than cores wait
    for each other at every operation.
    """
    # Here and not above: a random model needs no reader of files.
    from kvik.models.sources import resolve
    from kvik.models.weights import load_weights

    path = resolve(str(name_or_path))
    spec, files = load_spec(path), weight_files(path)
    spec = spec.within(spec.context if context is None else context)
    packed = not dense and native.library() is not None
    decoder = Decoder.from_weights(spec, load_weights(path, spec, packed))
    name = spec.name if Path(name_or_path).exists() else str(name_or_path)
    model = Model(name, spec, decoder, path, Origin(files, decoder))
    model.use_threads(threads())
    return model
