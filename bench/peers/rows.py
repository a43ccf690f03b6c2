"""What is compared: the rows, and in each the systems that take turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class System:
    """A peer, or kvik, with one setting; ``name`` is how tables call it."""

    name: str
    peer: Literal["kvik", "llama", "ik_llama", "transformers", "vllm"]
    settings: dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One piece of work: ``tokens`` in each of ``sequences``, decoded from or computed."""

    name: str
    model: Literal["smollm2", "gemma3", "llama-1b", "llama-8b"]
    work: Literal["decode", "prefill"]
    tokens: int
    sequences: int
    systems: tuple[System, ...]

    @property
    def title(self) -> str:
        """For people."""
        many = f"{self.sequences} x " if self.sequences > 1 else ""
        return f"{self.model}, {self.work}, {many}{self.tokens:,} tokens"


def _kvik(recipe: str) -> System:
    return System(f"kvik {recipe}", "kvik", {"kv": recipe})


def _llama(kv: str, flash: bool = True, peer: Literal["llama", "ik_llama"] = "llama") -> System:
    name = {"llama": "llama.cpp", "ik_llama": "ik_llama.cpp"}[peer]
    return System(
        f"{name} {kv}" + ("" if flash else ", no flash attention"), peer, {"kv": kv, "flash": flash}
    )


INT8, INT4 = _kvik("int8"), _kvik("int4")
# Without flash attention llama.cpp takes no quantized V.
LLAMA = (_llama("f16", flash=False), _llama("f16"), _llama("q8_0"), _llama("q4_0"))
IK = (_llama("f16", peer="ik_llama"), _llama("q8_0", peer="ik_llama"))
TRANSFORMERS = System("transformers fp32", "transformers", {})
VLLM = System("vLLM fp32", "vllm", {})

ROWS = {
    row.name: row
    for row in (
        Row("decode-512", "smollm2", "decode", 512, 1, (INT8, INT4, *LLAMA)),
        Row("decode-8000", "smollm2", "decode", 8000, 1, (INT8, INT4, *LLAMA)),
        Row("decode-8000-others", "smollm2", "decode", 8000, 1, (INT8, *IK, TRANSFORMERS, VLLM)),
        Row("prefill-4096", "smollm2", "prefill", 4096, 1, (INT8, *LLAMA[:3], TRANSFORMERS)),
        Row("prefill-4096-others", "smollm2", "prefill", 4096, 1, (INT8, *IK, VLLM)),
        Row("decode-8x4096", "smollm2", "decode", 4096, 8, (INT8, INT4, *LLAMA[:3], VLLM)),
        Row("decode-16x2000", "smollm2", "decode", 2000, 16, (INT8, INT4, *LLAMA[:3], VLLM)),
        Row("gemma-8192", "gemma3", "decode", 8192, 1, (INT8, INT4, LLAMA[0])),
        Row("llama-1b-4096", "llama-1b", "decode", 4096, 1, (INT8, INT4, *LLAMA[:3])),
        Row("llama-8b-4096", "llama-8b", "decode", 4096, 1, (INT8, *LLAMA[:3])),
    )
}
