"""Bytes of a model's weights in a chosen format."""

from __future__ import annotations

import difflib
import math
from fractions import Fraction

from kvik.errors import KvikError
from kvik.spec.ggml import TENSOR_TYPES
from kvik.spec.params import Params
from kvik.spec.stored import Stored

AS_IS = "as-is"
REMEDY = "give the memory that is left for KV with --available"
SHORT = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
TITLES = {
    "attention": "attention",
    "experts": "experts",
    "shared": "other networks",
    "output": "the output matrix",
}
# Bytes of a parameter. int4 as GPTQ and AWQ have it: groups of 128 with a 16-bit scale and a 4-bit
# zero; nf4 with a float32 scale for each 64; the others by their definitions.
FLOATS = {"fp32": Fraction(4), "fp16": Fraction(2), "bf16": Fraction(2)}
CODED = {
    "fp8": Fraction(1),
    "int8": Fraction(1),
    "int4": Fraction(1, 2) + Fraction(20, 8 * 128),
    "nf4": Fraction(1, 2) + Fraction(4, 64),
    "mxfp4": Fraction(17, 32),
    "nvfp4": Fraction(9, 16),
}
GGML = {
    t.name.lower(): Fraction(t.nbytes, t.elements)
    for t in TENSOR_TYPES.values()
    if t.name.startswith(("Q", "IQ", "TQ"))
}


def check_format(name: str) -> str:
    """The format in lower case; KvikError with the nearest for an unknown one."""
    known = [AS_IS, *FLOATS, *CODED, *GGML]
    low = name.casefold()
    if low in known:
        return low
    near = difflib.get_close_matches(low[:20], known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    raise KvikError(f"--weights {name[:40]!r} is no known format: {hint}")


def weight_bytes(
    params: Params | None, form: str, stored: Stored | None = None
) -> tuple[int | None, str]:
    """Bytes of all weights, and in words how they were counted; None where they are not known.

    A mixture of experts counts with all its experts. Embeddings and output matrix stay in 16 bits
    in the formats that are not GGML's; a tied output matrix is counted once.
    """
    if form == AS_IS:
        return _as_is(params, stored or Stored())
    if params is None:
        return None, f"weights: the number of parameters is not known; {REMEDY}"
    kept = (params.embedding or 0) + (params.output or 0) + params.per_layer
    if form in CODED:
        size = (params.total - kept) * CODED[form] + kept * 2
    else:
        size = params.total * (FLOATS | GGML)[form]
    words = f"weights: {params.total:,} parameters in {form}"
    if form in CODED:
        words += ", embeddings in 16 bits"
    return math.ceil(size), words + _active(params)


def _as_is(params: Params | None, stored: Stored) -> tuple[int | None, str]:
    """As the file, the files beside a configuration or the configuration itself say."""
    if params is not None and params.file_bytes is not None:
        return params.file_bytes, "weights: as they are stored in the file"
    if stored.nbytes is not None:
        return (
            stored.nbytes,
            "weights: as the safetensors files beside the configuration store them",
        )
    if params is None:
        return None, f"weights: the number of parameters is not known; {REMEDY}"
    size = stored.weigh(params)
    if size is None:
        why = stored.unknown or "how many parameters each format has is not known"
        return None, f"weights: {why}; {REMEDY} or --weights FORMAT"
    return math.ceil(
        size
    ), f"weights: {params.total:,} parameters {_formats(stored)}{_active(params)}"


def _formats(stored: Stored) -> str:
    """In words, by what the configuration says."""
    plain = SHORT.get(stored.plain, stored.plain) or "bf16"
    said = "" if stored.plain else " (taken for granted: the configuration does not say)"
    if not stored.coded:
        return f"in {plain}{said}"
    names = dict.fromkeys(part.name for part in stored.coded)
    coded = "; ".join(f"{_parts(stored, name)} in {name}" for name in names)
    return f"as the configuration says: {coded}; the rest in {plain}{said}"


def _parts(stored: Stored, name: str) -> str:
    """The sections that have the format, as words."""
    *first, last = [TITLES[part.section] for part in stored.coded if part.name == name]
    return f"{', '.join(first)} and {last}" if first else last


def _active(params: Params) -> str:
    return f"; a token uses {params.active:,} of them" if params.active < params.total else ""
