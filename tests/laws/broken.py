"""Caches and codecs with planted faults; the suite has to see every one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from kvik.cache import KVCache
from kvik.cache.pageio import gather, scatter
from kvik.cache.table import Sequence
from kvik.ops import Keys
from kvik.recipe.retention import Kept
from kvik.stages.ints import Int


class ShiftedPositions(KVCache):
    """Takes the slot count for the position once a second step begins."""

    @property
    def positions(self) -> Tensor:
        right = super().positions
        return right + (right > 0).long()


class MissingSinks(KVCache):
    """Forgets the sinks as soon as they leave the window."""

    def _keys(self, work: Any, step: Any, plan: Any, *rest: Any) -> Keys:
        keys = super()._keys(work, step, plan, *rest)
        kept: Kept = plan.kept
        return replace(keys, until=torch.minimum(keys.until, keys.position + (kept.window or 0)))


class Requantizes(KVCache):
    """Codes the newest page again with one scale for the page after every step."""

    def commit(self, accepted: Any = None) -> None:
        sequences = self._now.sequences
        super().commit(accepted)
        for sequence in sequences:
            for group, table in zip(self.resolved.groups, sequence.state.main, strict=True):
                pages = torch.from_numpy(table.pages[-1:].astype("int64"))
                for layer in group.layers:
                    slots = group.main.of(layer.index, "k")
                    x = layer.k.decode(gather(self.pool, slots, pages))
                    count = sequence.length % group.tokens or group.tokens
                    x = x[:, :count]
                    step_size = x.abs().amax() / 127
                    codes = layer.k.encode((x / step_size).round() * step_size)
                    at = pages.expand(count)
                    scatter(self.pool, slots, at, torch.arange(count), codes)


class LeaksAPage(KVCache):
    """Keeps the first page of a sequence that ended."""

    def free(self, sequence: Sequence) -> None:
        pages = sequence.state.pages()
        if pages.size:
            self.pool.retain(pages[:1])
        super().free(sequence)


class WritesSharedPages(KVCache):
    """Writes into a fork's last page instead of copying it first."""

    def fork(self, sequence: Sequence) -> Sequence:
        return Sequence(sequence.state)

    def free(self, sequence: Sequence) -> None:
        live = self.pool.references(sequence.state.pages()) > 0
        if live.all():
            super().free(sequence)


@dataclass(frozen=True)
class SwappedNibbles(Int):
    """Decodes the two channels of a byte in the wrong order."""

    names: ClassVar = {"swapped": {"bits": 4}}
    examples: ClassVar = ()

    def decode(self, planes: Mapping[str, Tensor]) -> Tensor:
        code = planes["code"]
        return super().decode({**planes, "code": (code >> 4) | (code << 4)})


@dataclass(frozen=True)
class Remembers(Int):
    """Scales by the largest number it has ever seen, so old codes mean something else."""

    names: ClassVar = {"remembers": {"bits": 8}}
    examples: ClassVar = ()
    largest: ClassVar[list[float]] = [0.0]

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        top = max(self.largest[0], float(x.abs().max()))
        self.largest[0] = top
        planes = super().encode(x)
        scale = torch.full_like(planes["scale"], top / 127)
        code = (x / (top / 127)).round().clamp(-127, 127).to(torch.int8)
        return {"code": code, "scale": scale}


BROKEN = {
    "shifted positions": ("fp16", ShiftedPositions, "logits differ"),
    "missing sinks": ("sinks:3+window:20", MissingSinks, "logits differ"),
    "requantizes": ("int8", Requantizes, "logits differ"),
    "leaks a page": ("int8", LeaksAPage, "stay used"),
    "writes shared pages": ("fp16", WritesSharedPages, "fork"),
    "a codec with a memory": ("remembers", KVCache, "logits differ"),
}
