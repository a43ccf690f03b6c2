"""What every byte of a KV budget is doing at one moment.

After Figure 2 of the PagedAttention paper (Kwon et al., SOSP 2023, arXiv 2309.06180). A budget is
split into seven parts, which add up to it exactly:

tokens     slots that hold a token a running request will still read
reserved   slots set aside for a running request that it will fill later
internal   slots set aside for a running request that it will never fill
external   what the allocator's shapes cost: the rounding of a request's slots up to a block, and,
           while the next request waits although there are enough free bytes for it, those bytes
stranded   ends of slabs that are too short for a page (kvik only)
leftover   free bytes while the next request waits because they are too few for it (kvik: for it
           and for one more page for everyone who runs)
idle       free bytes while no request waits

The *region* is the budget without what is idle: memory that nobody asks for is no waste. Shares
are of the region. The paper counts what is left over as external, "and others"; here the two are
told apart, since a leftover is no fragmentation: memory of any shape would be too little.
"""

from __future__ import annotations

from typing import NamedTuple


class Parts(NamedTuple):
    """Bytes of each part; see the module's text."""

    tokens: int = 0
    reserved: int = 0
    internal: int = 0
    external: int = 0
    stranded: int = 0
    leftover: int = 0
    idle: int = 0

    def plus(self, other: Parts) -> Parts:
        """Both together, part by part."""
        return Parts(*map(sum, zip(self, other, strict=True)))

    @property
    def total(self) -> int:
        """All parts: the budget."""
        return sum(self)

    @property
    def region(self) -> int:
        """Bytes handed out or wanted in vain."""
        return self.total - self.idle

    def shares(self) -> dict[str, float]:
        """Each part of the region as a fraction of it; they add up to 1 (all 0 without any)."""
        region = max(self.region, 1)
        return {name: n / region for name, n in self._asdict().items() if name != "idle"}
