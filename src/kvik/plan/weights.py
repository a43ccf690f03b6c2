"""Bytes of a model's weights in a chosen format."""

from __future__ import annotations

import difflib
import math
from fractions import Fraction

from kvik.errors import KvikError
from kvik.spec.ggml import TENSOR_TYPES
from kvik.spec.params import Params

AS_IS = "as-is"
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


def weight_bytes(params: Params | None, form: str) -> tuple[int | None, str]:
    """Bytes of all weights, and in words how they were counted; None where they are not known.

    A mixture of experts counts with all its experts. Embeddings and output matrix stay in 16 bits
    in the formats that are not GGML's; a tied output matrix is counted once.
    """
    if params is None:
        return None, "weights: the number of parameters is not known, so they count as nothing"
    if form == AS_IS and params.file_bytes is not None:
        return params.file_bytes, "weights: as they are stored in the file"
    assumed = form == AS_IS
    form = "bf16" if assumed else form
    kept = (params.embedding or 0) + (params.output or 0) + params.per_layer
    if form in CODED:
        size = (params.total - kept) * CODED[form] + kept * 2
    else:
        size = params.total * (FLOATS | GGML)[form]
    words = f"weights: {params.total:,} parameters in {form}"
    if assumed:
        words += " (taken for granted: a configuration stores none)"
    if form in CODED:
        words += ", embeddings in 16 bits"
    if params.active < params.total:
        words += f"; a token uses {params.active:,} of them"
    return math.ceil(size), words
