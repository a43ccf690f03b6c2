"""transformers: the model in float32 with torch's own attention, and its default cache."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache
from wire import serve


class Transformers:
    """One model; ``generate`` would add to each step what it does around the model."""

    def open(self, *, model: str, threads: int, **_: Any) -> dict[str, Any]:
        """Reads a GGUF file into float32."""
        path = Path(model)
        self.model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        torch.set_num_threads(threads)
        return {"system": "transformers", "version": transformers.__version__}

    def fill(self, tokens: int, sequences: int) -> dict[str, Any]:
        """Random K and V in every layer, by the cache's own ``update``."""
        start, config = time.perf_counter(), self.model.config
        self.cache = DynamicCache(config=config)
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        for layer in range(config.num_hidden_layers):
            shape = (sequences, config.num_key_value_heads, tokens, dim)
            self.cache.update(torch.randn(shape), torch.randn(shape), layer)
        self.filled, self.sequences = tokens, sequences
        return {"seconds": time.perf_counter() - start}

    @torch.inference_mode()
    def step(self) -> None:
        """One token for every sequence."""
        at = self.cache.get_seq_length()
        self.model(
            input_ids=torch.full((self.sequences, 1), 7),
            position_ids=torch.full((self.sequences, 1), at),
            cache=self.cache,
            use_cache=True,
        )

    def rewind(self) -> None:
        """Back to the filled length."""
        self.cache.crop(self.filled - self.cache.get_seq_length())

    @torch.inference_mode()
    def prefill(self, tokens: int, sequences: int) -> float:
        """The whole prompts in one call, logits of the last token."""
        ids = (torch.arange(tokens) * 7919 % self.model.config.vocab_size).repeat(sequences, 1)
        start = time.perf_counter()
        self.model(input_ids=ids, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - start


if __name__ == "__main__":
    serve(Transformers())
