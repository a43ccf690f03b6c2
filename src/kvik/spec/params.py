"""How many parameters a model has, and how many of them one token uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Params:
    """Parameter counts of the language model (no vision tower, no multi-token prediction).

    ``routed`` of the ``total`` lie in ``experts`` routed experts, ``experts_per_token`` of which
    each token uses; all three are 0 in a dense model, None where only the published total and
    ``active`` are known. ``embedding`` counts the table of token embeddings, ``output`` the
    separate output matrix (0 where it is tied to the table), ``per_layer`` the per-layer
    embeddings of Gemma 3n and 4, which may stay on the CPU, ``attention`` the mixers of all layers
    (attention and recurrences); None where unknown. ``looked_up`` of the total lie in tables of
    which a token reads a row and nothing else, so they are not active: embeddings that no output
    matrix shares, per-layer embeddings, learned positions.
    ``file_bytes`` is what the tensors take as stored (GGUF), None for other sources.
    ``source`` says in words how the counts were found.
    """

    total: int
    active: int
    routed: int | None = 0
    experts: int | None = 0
    experts_per_token: int | None = 0
    embedding: int | None = None
    output: int | None = None
    per_layer: int = 0
    attention: int | None = None
    looked_up: int = 0
    file_bytes: int | None = None
    source: str = "counted from the configuration"

    def __post_init__(self) -> None:
        if not 0 < self.active <= self.total:
            raise ValueError(f"{self.active} of {self.total} parameters cannot be active")

    def used(self, tokens: int) -> float:
        """Parameters that a step over ``tokens`` independent tokens is expected to read.

        Every token picks its experts evenly: E * (1 - (1 - k/E)^tokens) of E are touched.
        """
        if not self.routed or not self.experts or self.experts_per_token is None:
            most = self.total - self.looked_up
            return float(most if self.experts is None and tokens > 1 else self.active)
        missed = (1.0 - self.experts_per_token / self.experts) ** tokens
        return self.total - self.looked_up - self.routed * missed
