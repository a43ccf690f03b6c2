"""Plan: a recipe resolved for one model, layer by layer and group by group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvik.recipe.codec import Codec, Stream
from kvik.recipe.layout import PageFormat
from kvik.recipe.recipe import Recipe
from kvik.recipe.retention import Evicting, Kept, Ranges
from kvik.spec.model import LayerSpec, ModelSpec


@dataclass(frozen=True)
class LayerPlan:
    """One layer: its bound codecs (``v`` None when V is part of K) and what it keeps."""

    index: int
    spec: LayerSpec
    k: Codec
    v: Codec | None
    kept: Kept
    evicting: Evicting | None = None

    def codec(self, stream: Stream) -> Codec:
        """The codec of a stream; V of a latent layer is read from K."""
        return self.k if stream == "k" or self.v is None else self.v

    @property
    def codecs(self) -> tuple[Codec, ...]:
        """The codecs of the streams that are stored."""
        return (self.k,) if self.v is None else (self.k, self.v)

    @property
    def has_tail(self) -> bool:
        """Whether some tokens wait in full precision before they are coded."""
        return not all(c.immediate for c in self.codecs)


@dataclass(frozen=True)
class Group:
    """Layers (or one KV head of one) that keep the same tokens and so share one block table.

    ``main`` pages hold codes, ``tail`` pages hold tokens in full precision until their codes
    close. ``head`` is None when the group holds all heads of its layers.
    """

    index: int
    layers: tuple[LayerPlan, ...]
    main: PageFormat
    tail: PageFormat | None
    head: int | None = None

    @property
    def kept(self) -> Kept:
        """What every layer of the group keeps."""
        return self.layers[0].kept

    @property
    def evicting(self) -> Evicting | None:
        """The evicting policy of the group, if any."""
        return self.layers[0].evicting

    @property
    def tokens(self) -> int:
        """Tokens a page holds."""
        return self.main.tokens

    def coded(self, seen: int) -> int:
        """Leading tokens that have a code in some stream after ``seen`` tokens."""
        if self.tail is None:
            return seen
        return max(c.closed(seen) for c in self.layers[0].codecs)

    def waiting(self, seen: int) -> int:
        """First token that some stream still holds in full precision after ``seen`` tokens."""
        if self.tail is None:
            return seen
        return min(c.closed(seen) for c in self.layers[0].codecs)

    def main_ranges(self, seen: int) -> Ranges:
        """Tokens in main pages after ``seen`` tokens."""
        return clip(self.kept.alive(seen), 0, self.coded(seen))

    def tail_ranges(self, seen: int) -> Ranges:
        """Tokens in tail pages after ``seen`` tokens."""
        return clip(self.kept.alive(seen), self.waiting(seen), seen) if self.tail else []


@dataclass(frozen=True)
class Plan:
    """What a recipe does to every layer of a model."""

    recipe: Recipe
    spec: ModelSpec
    layers: tuple[LayerPlan | None, ...]
    groups: tuple[Group, ...]
    recompute: bool = False

    @cached_property
    def groups_of_layer(self) -> dict[int, tuple[Group, ...]]:
        """The group of a layer, or one group per KV head, in head order."""
        found: dict[int, list[Group]] = {}
        for group in self.groups:
            for layer in group.layers:
                found.setdefault(layer.index, []).append(group)
        return {layer: tuple(groups) for layer, groups in found.items()}

    @cached_property
    def page_bytes(self) -> tuple[int, ...]:
        """Distinct page sizes: the pool's size classes."""
        sizes = {g.main.nbytes for g in self.groups} | {
            g.tail.nbytes for g in self.groups if g.tail
        }
        return tuple(sorted(sizes))


def clip(ranges: Ranges, low: int, high: int) -> Ranges:
    """The parts of half-open ranges inside [low, high)."""
    return [(max(a, low), min(b, high)) for a, b in ranges if max(a, low) < min(b, high)]


def page_ranges(ranges: Ranges, tokens: int) -> Ranges:
    """Half-open ranges of the page numbers (position // tokens) that hold any token of ``ranges``.

    Takes no longer for a million tokens than for one.
    """
    found: Ranges = []
    for a, b in ranges:
        first, stop = a // tokens, (b - 1) // tokens + 1
        if found:
            first = max(first, found[-1][1])
        if first < stop:
            found.append((first, stop))
    return found


def page_count(ranges: Ranges, tokens: int) -> int:
    """How many pages hold any token of the ranges."""
    return sum(stop - first for first, stop in page_ranges(ranges, tokens))


def pages_of(ranges: Ranges, tokens: int) -> list[int]:
    """Their numbers, ascending."""
    return [n for first, stop in page_ranges(ranges, tokens) for n in range(first, stop)]
