"""Which caches are measured, and what was published of the peers'.

Published: SmolLM2-135M-Instruct on a CPU, transformers 5.2.0, quanto 0.2.7, hqq 0.2.8.post1,
llama-cpp-python 0.3.36; the offsets into the text were not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Peer = Literal["kvik", "quantized_caches", "llama"]
WORKERS: dict[Peer, str] = {
    "quantized_caches": "transformers_caches.py",
    "llama": "llama_caches.py",
    "kvik": "kvik_caches.py",
}
# The cache that each system's others are set against, and the bits of its numbers.
REFERENCES: dict[Peer, tuple[dict[str, Any], int]] = {
    "quantized_caches": ({}, 32),
    "llama": ({"k": "f16", "v": "f16"}, 16),
    "kvik": ({"kv": "fp32"}, 32),
}


@dataclass(frozen=True)
class Published:
    """A row of the published table: ``n`` scored tokens, bits an element, KL in nats and so on.

    Figures are as they were printed: their last digit says how far they were rounded.
    """

    n: int
    bits: str
    kl: str
    kl_p99: str
    top1: str
    ppl_ratio: str


@dataclass(frozen=True)
class Cache:
    """One cache of one system; ``name`` is how tables call it."""

    name: str
    peer: Peer
    settings: dict[str, Any] = field(hash=False)
    published: Published | None = None


def _hf(backend: str, bits: int, more: str, settings: dict[str, int], n: int, *known: str) -> Cache:
    name = f"{backend} {bits}, {more}"
    chosen = {"backend": backend, "nbits": bits, **settings}
    return Cache(name, "quantized_caches", chosen, Published(n, *known))


def _llama(k: str, v: str, n: int, *known: str, rotate: bool = True) -> Cache:
    name = f"llama.cpp {k}/{v}" + ("" if rotate else ", rotation off")
    settings = {"k": k, "v": v, "rotate": rotate}
    return Cache(name, "llama", settings, Published(n, *known))


def _kvik(kv: str) -> Cache:
    return Cache(f"kvik {kv}", "kvik", {"kv": kv})


AXIS1 = {"axis_key": 1, "axis_value": 1}
KEYS_BY_TOKEN = {"axis_key": -1, "residual_length": 32}

# fmt: off
QUANTIZED = (
    _hf("hqq", 8, "axis 1", AXIS1, 512, "9.0", ".00004", ".0003", ".990", "1.001"),
    _hf("hqq", 8, "axis 0", {}, 512, "9.0", ".00031", ".0022", ".979", "1.000"),
    _hf("quanto", 4, "residual 128 (default)", {}, 1536, "5.0", ".0156", ".135", ".950", "1.018"),
    _hf("quanto", 4, "residual 32", {"residual_length": 32},
        1536, "5.0", ".0240", ".251", ".930", "1.034"),
    _hf("quanto", 4, "axis_key -1, residual 32", KEYS_BY_TOKEN,
        1536, "5.0", ".0096", ".081", ".956", "1.009"),
    _hf("hqq", 4, "axis 0, residual 128 (default)", {},
        512, "5.0", ".0964", ".766", ".857", "1.132"),
    _hf("hqq", 4, "axis 1, residual 128", AXIS1, 1536, "5.0", ".0159", ".139", ".941", "1.014"),
    _hf("quanto", 2, "residual 128 (default)", {}, 1536, "3.0", "1.99", "7.69", ".338", "8.57"),
    _hf("quanto", 2, "axis_key -1, residual 32", KEYS_BY_TOKEN,
        1536, "3.0", ".387", "2.35", ".715", "1.53"),
    _hf("hqq", 2, "axis 1, residual 128", AXIS1, 512, "3.0", "1.40", "5.91", ".414", "5.44"),
    _llama("q8_0", "q8_0", 1536, "8.5", ".0047", ".025", ".960", ".998"),
    _llama("q8_0", "q4_0", 1536, "6.5", ".0095", ".052", ".947", "1.001"),
    _llama("q4_0", "q4_0", 1536, "4.5", ".0615", ".471", ".887", "1.058"),
    _llama("q4_0", "q4_0", 512, "4.5", ".136", ".932", ".838", "1.166", rotate=False),
    *map(_kvik, (
        "fp16", "int8:group=16", "q8_0", "int8", "int8/int4", "q8_0/q4_0", "int8/int4:range=sym",
        "int4", "int4:range=sym", "q4_0",
    )),
)
# fmt: on


@dataclass(frozen=True)
class Stream:
    """One cache of one system that text streams through; without settings it is recomputation."""

    name: str
    peer: Peer
    settings: dict[str, Any] | None = field(hash=False)


BUDGET = 256
WINDOW, RECOMPUTE = "window 256", "recompute the last 256"
IN_CACHE = "4 sinks + 252, in-cache positions"
ORIGINAL = "4 sinks + 252, original positions"
# fmt: off
STREAMS = (
    Stream("full", "kvik", {"kv": "fp32"}),
    Stream(WINDOW, "kvik", {"kv": "fp32+window:256"}),
    Stream(IN_CACHE, "kvik", {"kv": "fp32+sinks:4+window:252"}),
    Stream(ORIGINAL, "kvik", {"kv": "fp32+sinks:4,positions=original+window:252"}),
    Stream(RECOMPUTE, "kvik", None),
    Stream("full", "quantized_caches", {}),
    Stream(WINDOW, "quantized_caches", {"window": 256}),
    Stream(ORIGINAL, "quantized_caches", {"window": 252, "sinks": 4}),
    Stream(RECOMPUTE, "quantized_caches", None),
)
# Published, by cache and positions: all past the budget, the first 256 of them, some of them.
# Perplexities were of other texts, so what can be compared is how many times the full cache's.
PUBLISHED_STREAMS: dict[tuple[str, str], dict[str, str]] = {
    (WINDOW, "all"): {"ppl_ratio": f"{22.24 / 10.85:.3f}", "kl": ".746", "top1": ".604"},
    (IN_CACHE, "all"): {"ppl_ratio": f"{12.31 / 10.85:.3f}", "kl": ".137", "top1": ".849"},
    (ORIGINAL, "all"): {"ppl_ratio": f"{12.37 / 10.85:.3f}", "kl": ".138", "top1": ".845"},
    (RECOMPUTE, "some"): {"kl": ".129", "top1": ".867"},
    (WINDOW, "early"): {"ppl_ratio": f"{12.39 / 7.40:.3f}"},
    (IN_CACHE, "early"): {"ppl_ratio": f"{7.41 / 7.40:.3f}"},
    (ORIGINAL, "early"): {"ppl_ratio": f"{7.41 / 7.40:.3f}"},
}
# fmt: on
