"""The peer: transformers' ``generate`` on batches padded to one length, one batch after another.

What serving looks like without paging and continuous batching. Requests wait until the running
batch is done. Then the waiting ones are taken in order of arrival, as many as fit in the budget
when every row of the batch is as long as the longest prompt and the longest output in it together:
that is what the cache of ``generate`` (float32) grows to. A request is done when its own last token
is there, although its row is computed until the batch ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from kvik.bench.serving_load import Asked
from kvik.bench.serving_meter import Meter
from kvik.bench.serving_run import Clock
from kvik.errors import CapacityError, KvikError
from kvik.machine import human_bytes
from kvik.spec import ModelSpec

CELL = 4  # bytes of a float32


def check_installed(gguf: bool) -> None:
    """KvikError unless transformers, and what it needs for such a file, can be imported."""
    for package in ("transformers", *(("accelerate",) if gguf else ())):
        if importlib.util.find_spec(package) is None:
            raise KvikError(
                f"--peer transformers needs {package}, which is not installed: "
                "pip install 'kvik[hf]'"
            )


def load_peer(path: Path) -> Any:
    """The same model file in transformers, float32; a GGUF file or a folder."""
    check_installed(path.suffix == ".gguf")
    import transformers

    folder, options = path, {}
    if path.suffix == ".gguf":
        folder, options = path.parent, {"gguf_file": path.name}
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bars
        try:
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True, **options
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise KvikError(f"transformers cannot read {path}: {error}") from None
    return model.eval()


def token_bytes(spec: ModelSpec) -> int:
    """Bytes of one token in a dense float32 cache; KvikError for layers that store none such."""
    other = {layer.kind for layer in spec.layers} - {"full", "sliding"}
    if other:
        raise KvikError(f"--peer knows no cache of {', '.join(sorted(other))} layers: leave it out")
    return sum(layer.kv_heads * (layer.k_dim + layer.v_dim) * CELL for layer in spec.layers)


def batch_bytes(batch: Sequence[Asked], per_token: int) -> int:
    """What the cache of a padded batch grows to; the last token of a row is never fed back."""
    prompt, output = max(len(a.prompt) for a in batch), max(a.output for a in batch)
    return len(batch) * (prompt + output - 1) * per_token


class PaddedServer:
    """Padded batches of a transformers model in ``memory`` bytes of K and V."""

    def __init__(self, model: Any, spec: ModelSpec, load: Sequence[Asked], *, memory: int) -> None:
        self.meter = Meter.of(load)
        self.model, self.memory, self.per_token = model, memory, token_bytes(spec)
        self.batches: list[list[int]] = []
        self._waiting: list[tuple[int, Asked]] = []
        self._generate([Asked(0.0, (0,), 2)], lambda tokens: None)  # the first call is slow

    @property
    def busy(self) -> bool:
        """Whether a request waits: between steps none runs."""
        return bool(self._waiting)

    def add(self, number: int, asked: Asked) -> None:
        """Queues a request; CapacityError when it would not fit alone."""
        need = batch_bytes([asked], self.per_token)
        if need > self.memory:
            raise CapacityError(f"{human_bytes(need)} of K and V do not fit, even alone")
        self._waiting.append((number, asked))

    def step(self, clock: Clock) -> None:
        """One batch from its first token to its last."""
        count = 1
        while count < len(self._waiting):
            asked = [a for _, a in self._waiting[: count + 1]]
            if batch_bytes(asked, self.per_token) > self.memory:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        self.batches.append([number for number, _ in batch])
        before, done = clock.now(), 0

        def put(tokens: list[int]) -> None:
            nonlocal before, done
            now = clock.now()
            live = [row for row, (_, asked) in enumerate(batch) if done < asked.output]
            for row in live:
                self.meter.token(batch[row][0], tokens[row], now)
            self.meter.ran(now - before, len(live), 0)
            before, done = now, done + 1

        held = self._generate([asked for _, asked in batch], put)
        self.meter.ran(clock.now() - before, 0, held)

    def _generate(self, batch: Sequence[Asked], put: Callable[[list[int]], None]) -> int:
        """Greedy, to the longest output, each step's tokens told; the bytes of the cache."""
        width = max(len(asked.prompt) for asked in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, asked in enumerate(batch):
            ids[row, width - len(asked.prompt) :] = torch.tensor(asked.prompt)
            mask[row, width - len(asked.prompt) :] = 1
        result = self.model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max(asked.output for asked in batch),
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            streamer=_Streamer(put),
            return_dict_in_generate=True,
        )
        cache = result["cache" if "cache" in result else "past_key_values"]  # before 5.24
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


class _Streamer:
    """Hands on the tokens of each step; what ``generate`` puts first is the prompts."""

    def __init__(self, put: Callable[[list[int]], None]) -> None:
        self._put, self._prompts = put, True

    def put(self, tokens: torch.Tensor) -> None:
        """Tokens [rows] of a step."""
        if not self._prompts:
            self._put(tokens.tolist())
        self._prompts = False

    def end(self) -> None:
        """Nothing is left to be told."""
