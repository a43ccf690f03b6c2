"""llama.cpp through llama-cpp-python's low-level API: what its own benchmarks call, and no more.

Both thread counts are set (decoding and batches have one each). A long cache is filled by
computing a block of it and copying that block with the library's own state functions, each copy
shifted to its place: what is attended to does not change the time, how much of it does.
"""

from __future__ import annotations

import ctypes
import struct
import time
from typing import Any

import llama_cpp as lib
from wire import serve

BLOCK = 1000
BATCH = 2048


class Llama:
    """One model in one context."""

    def __init__(self) -> None:
        lib.llama_backend_init()
        self._quiet = lib.llama_log_callback(lambda level, text, data: None)
        lib.llama_log_set(self._quiet, ctypes.c_void_p(0))

    def open(
        self,
        *,
        model: str,
        kv: str,
        flash: bool,
        threads: int,
        tokens: int,
        sequences: int,
        **_: Any,
    ) -> dict[str, Any]:
        """``kv``: f16, q8_0 or q4_0; ``tokens``: the most that a sequence will hold."""
        settings = lib.llama_model_default_params()
        self.model = lib.llama_model_load_from_file(model.encode(), settings)
        if not self.model:
            raise ValueError(f"llama.cpp cannot load {model}")
        self.settings = {"kv": kv, "flash": flash, "threads": threads}
        self.context = self._context(tokens, sequences)
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.lengths: list[int] = []
        self.filled = 0
        return {"system": "llama.cpp", "version": lib.__version__}

    def _context(self, tokens: int, sequences: int) -> Any:
        """A cache for so many sequences, each in a stream of its own.

        A single one gets a second beside it in the same stream, to copy blocks through.
        """
        params = lib.llama_context_default_params()
        single = sequences == 1
        params.n_seq_max = 2 if single else sequences
        params.kv_unified = single
        # Whole blocks are copied, and what is too much of the last one is given up again.
        unit = BLOCK if single else 256
        params.n_ctx = sequences * -(-tokens // unit) * unit
        params.n_batch, params.n_ubatch = BATCH, 512
        params.n_threads = params.n_threads_batch = self.settings["threads"]
        params.flash_attn_type = int(self.settings["flash"])
        types = {"f16": lib.GGML_TYPE_F16, "q8_0": lib.GGML_TYPE_Q8_0, "q4_0": lib.GGML_TYPE_Q4_0}
        params.type_k = params.type_v = types[self.settings["kv"]]
        context = lib.llama_init_from_model(self.model, params)
        if not context:
            raise ValueError(f"llama.cpp refuses a cache with {self.settings}")
        return context

    @property
    def memory(self) -> Any:
        """The cache of the context."""
        return lib.llama_get_memory(self.context)

    def fill(self, tokens: int, sequences: int) -> dict[str, Any]:
        """A block computed, the rest of a sequence copied from it, other sequences from that."""
        start = time.perf_counter()
        if sequences == 1:
            self._fill_one(tokens)
        else:
            many, self.context = self.context, self._context(tokens + 1, 1)
            self._fill_one(tokens)
            state = _spread(self._state(), tokens, sequences)
            lib.llama_free(self.context)
            self.context = many
            for sequence in range(sequences):
                self._restore(state, sequence)
        self.filled, self.lengths = tokens, [tokens] * sequences
        return {"seconds": time.perf_counter() - start}

    def _fill_one(self, tokens: int) -> None:
        lib.llama_memory_clear(self.memory, True)
        # The cache of sliding layers is too short to be put together of blocks.
        block = tokens if lib.llama_model_n_swa(self.model) else min(tokens, BLOCK)
        self._prompt(0, block)
        state = self._state()
        for start in range(block, tokens, block):
            self._restore(state, 1)
            lib.llama_memory_seq_add(self.memory, 1, 0, -1, start)
            lib.llama_memory_seq_cp(self.memory, 1, 0, start, tokens)
            lib.llama_memory_seq_rm(self.memory, 1, -1, -1)
        # A step moves what was shifted.
        self.filled, self.lengths = tokens, [tokens]
        self.step()
        self.rewind()

    def _state(self) -> Any:
        size = lib.llama_state_seq_get_size(self.context, 0)
        state = (ctypes.c_uint8 * size)()
        lib.llama_state_seq_get_data(self.context, state, size, 0)
        return state

    def _restore(self, state: Any, sequence: int) -> None:
        if not lib.llama_state_seq_set_data(self.context, state, len(state), sequence):
            raise ValueError("llama.cpp did not take its own state back")

    def step(self) -> None:
        """One token more for every sequence, in one batch."""
        self._decode([(7 + s, at, s, True) for s, at in enumerate(self.lengths)])
        self.lengths = [at + 1 for at in self.lengths]

    def rewind(self) -> None:
        """Forgets what came after ``fill``."""
        for sequence in range(len(self.lengths)):
            lib.llama_memory_seq_rm(self.memory, sequence, self.filled, -1)
        self.lengths = [self.filled] * len(self.lengths)

    def prefill(self, tokens: int, sequences: int) -> float:
        """All prompts, one after another, the logits of the last token of each."""
        lib.llama_memory_clear(self.memory, True)
        start = time.perf_counter()
        for sequence in range(sequences):
            self._prompt(sequence, tokens)
        seconds = time.perf_counter() - start
        lib.llama_memory_clear(self.memory, True)
        return seconds

    def _prompt(self, sequence: int, tokens: int) -> None:
        ids = [(1 + 7919 * i) % self.vocab for i in range(tokens)]
        for low in range(0, tokens, BATCH):
            part = range(low, min(low + BATCH, tokens))
            self._decode([(ids[i], i, sequence, i == tokens - 1) for i in part])

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Rows of (token, position, sequence, logits wanted)."""
        batch = lib.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = wanted
        code = lib.llama_decode(self.context, batch)
        if code == 0:
            lib.llama_get_logits(self.context)
        lib.llama_batch_free(batch)
        if code:
            raise ValueError(f"llama_decode returned {code}")


def _spread(state: Any, tokens: int, streams: int) -> Any:
    """A sequence's state as a cache of so many streams takes it: all but one of them empty.

    The state begins with the number of streams and the tokens in the first of them.
    """
    raw, head = bytes(state), struct.pack("<II", 1, tokens)
    at = raw.index(head, 0, 64)
    whole = raw[:at] + struct.pack("<I", streams) + raw[at + 4 :] + bytes(4 * (streams - 1))
    return (ctypes.c_uint8 * len(whole)).from_buffer_copy(whole)


if __name__ == "__main__":
    serve(Llama())
