"""Worker: llama.cpp's caches through llama-cpp-python's low-level API, with flash attention.

A prompt goes through the quantized cache too. K and V of quantized types are rotated first unless
LLAMA_ATTN_ROT_DISABLE is set when a context is made.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import llama_cpp as lib
import numpy as np
from logits import Out
from wire import answer_all

SWITCH = "LLAMA_ATTN_ROT_DISABLE"
PREFILL = 512


class Llama:
    """One model; every request has a context of its own."""

    def __init__(self) -> None:
        lib.llama_backend_init()
        self._quiet = lib.llama_log_callback(lambda level, text, data: None)
        lib.llama_log_set(self._quiet, ctypes.c_void_p(0))

    def open(self, *, model: str, threads: int) -> dict[str, Any]:
        """Loads the model."""
        settings = lib.llama_model_default_params()
        self.model = lib.llama_model_load_from_file(model.encode(), settings)
        if not self.model:
            raise ValueError(f"llama.cpp cannot load {model}")
        self.threads = threads
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        return {"versions": {"llama-cpp-python": lib.__version__}}

    def _context(self, tokens: int, k: str, v: str, rotate: bool) -> Any:
        params = lib.llama_context_default_params()
        params.n_ctx = -(-tokens // 256) * 256
        params.n_batch = params.n_ubatch = PREFILL
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = 1
        params.type_k, params.type_v = (getattr(lib, f"GGML_TYPE_{one.upper()}") for one in (k, v))
        os.environ[SWITCH] = str(int(not rotate))
        context = lib.llama_init_from_model(self.model, params)
        if not context:
            raise ValueError(f"llama.cpp refuses a cache of {k} and {v}")
        return context

    def forced(
        self, *, ids: list[int], context: int, chunk: int, cache: dict[str, Any], out: str
    ) -> dict[str, Any]:
        """Logits after each token behind the context; bytes of K and V after the context."""
        made = self._context(len(ids), cache["k"], cache["v"], cache.get("rotate", True))
        try:
            for low in range(0, context, PREFILL):
                self._decode(made, ids, low, min(low + PREFILL, context), wanted=False)
            found = self._bytes(made, context)
            rows = Out(out, len(ids) - context, self.vocab)
            for low in range(context, len(ids), chunk):
                rows.add(self._decode(made, ids, low, min(low + chunk, len(ids)), wanted=True))
            rows.close()
            return found
        finally:
            lib.llama_free(made)

    def _decode(self, context: Any, ids: list[int], low: int, high: int, *, wanted: bool) -> Any:
        """Runs tokens ``low`` to ``high``; their logits ``[n, vocab]``, or none."""
        count = high - low
        batch = lib.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        for i, position in enumerate(range(low, high)):
            batch.token[i], batch.pos[i] = ids[position], position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = wanted
        code = lib.llama_decode(context, batch)
        lib.llama_batch_free(batch)
        if code:
            raise ValueError(f"llama_decode returned {code}")
        rows = count if wanted else 0
        if not rows:
            return np.empty((0, self.vocab), np.float32)
        found = np.ctypeslib.as_array(lib.llama_get_logits(context), (rows * self.vocab,))
        return found.reshape(rows, self.vocab).copy()

    def _bytes(self, context: Any, tokens: int) -> dict[str, int]:
        """K and V as the library itself writes them out, and how many numbers they stand for.

        Beside them the state has what it says of each token; see ``reproduce.bits``.
        """
        heads, model = lib.llama_model_n_head_kv(self.model), self.model
        dim = lib.llama_model_n_embd(model) // lib.llama_model_n_head(model)
        elements = 2 * lib.llama_model_n_layer(model) * heads * dim * tokens
        return {"bytes": lib.llama_state_seq_get_size(context, 0), "elements": elements}


if __name__ == "__main__":
    llama = Llama()
    answer_all({"open": llama.open, "forced": llama.forced})
