"""vLLM's CPU build in this process, in float32, every step one call of its engine.

It reads safetensors, so the GGUF file is written out as such first. For decoding, caches are filled
by the connector that vLLM ships for its own decode benchmarks: it claims that all but the last
token of every prompt is there already.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "4",
    "VLLM_NO_USAGE_STATS": "1",
}

import torch
import transformers
import vllm
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine
from wire import serve

FILLED = {"kv_connector": "DecodeBenchConnector", "kv_role": "kv_both"}


class Vllm:
    """One engine; its sequences go on growing, as they cannot be taken back."""

    def open(
        self, *, model: str, threads: int, tokens: int, sequences: int, work: str, **_: Any
    ) -> dict[str, Any]:
        """Converts the model and starts the engine."""
        self.folder = tempfile.TemporaryDirectory()
        path = Path(model)
        read = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        )
        self.vocab = read.config.vocab_size
        # It is plain float32 by now, and has to forget that its file was not.
        read.hf_quantizer = None
        del read.config.quantization_config
        read.save_pretrained(self.folder.name)
        del read
        args = EngineArgs(
            model=self.folder.name,
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            max_model_len=min(8192, tokens + 256),
            max_num_seqs=sequences,
            max_num_batched_tokens=2048,
            enable_prefix_caching=False,
            kv_transfer_config=FILLED if work == "decode" else None,
        )
        self.engine = LLMEngine.from_engine_args(args)
        torch.set_num_threads(threads)
        self.number = 0
        return {"system": "vllm", "version": vllm.__version__}

    def _add(self, tokens: int, sequences: int, new: int) -> None:
        for _ in range(sequences):
            self.number += 1
            # No two prompts begin alike.
            ids = [(self.number + 7919 * i) % self.vocab for i in range(tokens)]
            sampling = SamplingParams(
                temperature=0.0, max_tokens=new, ignore_eos=True, detokenize=False
            )
            self.engine.add_request(str(self.number), {"prompt_token_ids": ids}, sampling)

    def fill(self, tokens: int, sequences: int) -> dict[str, Any]:
        """Claims that the prompts were computed, and runs until every sequence decodes."""
        start = time.perf_counter()
        self.sequences = sequences
        self._add(tokens, sequences, new=250)
        started: set[str] = set()
        while len(started) < sequences:
            started |= {out.request_id for out in self.engine.step()}
        return {"seconds": time.perf_counter() - start}

    def step(self) -> None:
        """One token for every sequence."""
        outputs = self.engine.step()
        if len(outputs) != self.sequences:
            raise RuntimeError(f"a step gave {len(outputs)} tokens for {self.sequences} sequences")

    def rewind(self) -> None:
        """Sequences cannot be taken back: they are a few tokens longer in every round."""

    def prefill(self, tokens: int, sequences: int) -> float:
        """The prompts and one token of each."""
        self._add(tokens, sequences, new=1)
        start = time.perf_counter()
        while self.engine.has_unfinished_requests():
            self.engine.step()
        return time.perf_counter() - start


if __name__ == "__main__":
    serve(Vllm())
