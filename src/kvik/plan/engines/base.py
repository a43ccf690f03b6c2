"""What every engine answers: bytes of a request, tokens of a pool, memory it leaves for KV."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from kvik.errors import KvikError
from kvik.plan.express import Expressed, Language, express
from kvik.plan.ranks import Parallel, Rank
from kvik.recipe import Recipe
from kvik.spec.model import Extra, LayerSpec, ModelSpec

GIB = 1 << 30
CHUNK = 512  # tokens of a step where the engine says nothing
LONGEST = 1 << 40  # where a search for the longest context ends


@dataclass(frozen=True)
class CacheType:
    """How an engine stores a token of a layer, in bytes.

    ``head`` takes the channels of K and V of one KV head, ``latent`` the width of a latent row and
    how many of its channels carry the position, ``side`` the width of a side stream's row. None:
    the engine does not store such layers in this type.
    """

    name: str
    head: Callable[[int, int], int] | None
    latent: Callable[[int, int], int] | None = None
    side: Callable[[int], int] | None = None

    def row(self, layer: LayerSpec) -> int:
        """K and V of one token, all heads; KvikError where this type cannot hold them."""
        if not layer.caches_tokens:
            return 0
        if layer.kind != "latent":
            return layer.kv_heads * self._head(layer.k_dim, layer.v_dim)
        if self.latent is None:
            raise KvikError(f"{self.name} cannot store the latent rows of MLA; write fp16 or fp8")
        return self.latent(layer.k_dim, layer.rope_dim)

    def _head(self, k: int, v: int) -> int:
        if self.head is None:
            raise KvikError(f"{self.name} stores the latent rows of MLA only; write fp16 or fp8")
        return self.head(k, v)

    def extra(self, stream: Extra) -> int:
        """One row of a side stream."""
        if self.side is None:
            return self._head(stream.dim, 0)
        return self.side(stream.dim)


def plain(name: str, nbytes: int) -> CacheType:
    """Floats of ``nbytes`` bytes, without scales."""
    return CacheType(name, lambda k, v: nbytes * (k + v), lambda d, _: nbytes * d)


def ds_mla(dim: int, rope: int) -> int:
    """FlashMLA's row: fp8 codes, a float32 scale for each 128, the rotary part in bf16.

    DeepSeek-V4's rows of 512 hold 448 codes and 8 bytes of scales instead.
    """
    codes = dim - rope
    return codes + 2 * rope + (4 * -(-codes // 128) if codes % 128 == 0 else 8)


def ds_side(dim: int) -> int:
    """A side stream beside such rows: an indexer's key in 8 bits with a float32 scale for each 128,
    or a compressed row of DeepSeek-V4.
    """
    return dim + 4 * -(-dim // 128) if dim < 256 else ds_mla(dim, 64)


@dataclass(frozen=True)
class Setting:
    """What is planned: the devices' parts, the recipe or the engine's own type, the load."""

    ranks: tuple[Rank, ...]
    recipe: Recipe | None
    kv: str
    parallel: Parallel = field(default_factory=Parallel)
    inflight: int | None = None
    memory: int | None = None
    device: str | None = None


class Engine(ABC):
    """One engine and its rules; all figures are for the fullest device.

    ``types`` are its own cache types, ``language`` says which of them stand for recipe words;
    ``unsized`` are types that it has and of which no row size is known. ``expands`` says that it
    has no latent cache for some families (``expanded``), ``lacks`` which of tp, cp and pp it has no
    option for, ``inflight_words`` what --inflight does where it does not change the reservation.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    types: ClassVar[Mapping[str, CacheType]] = {}
    unsized: ClassVar[tuple[str, ...]] = ()
    language: ClassVar[Language] = Language({}, {})
    inflight_default: ClassVar[int] = 0
    expands: ClassVar[bool] = False
    lacks: ClassVar[tuple[str, ...]] = ()
    inflight_words: ClassVar[str] = ""
    rule: ClassVar[str]
    fit_rule: ClassVar[str]

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    @classmethod
    def check(cls, spec: ModelSpec, parallel: Parallel) -> None:
        """KvikError for devices that the engine refuses this model on."""
        del spec, parallel  # most refuse none

    @property
    def inflight(self) -> int:
        """Tokens that one step may add to a request."""
        given = self.setting.inflight
        return self.inflight_default if given is None else given

    def step_tokens(self, context: int) -> int:
        """Tokens that one step computes at most."""
        return self.inflight or CHUNK

    @cached_property
    def expressed(self) -> Expressed:
        """The recipe in the engine's words."""
        if self.setting.recipe is None:
            return Expressed(self.setting.kv, self.setting.kv)
        return express(self.setting.recipe, self.spoken)

    @property
    def spoken(self) -> Language:
        """What it has words for on this model: types that hold latent rows where there are any."""
        layers = [y for rank in self.setting.ranks for y in rank.spec.layers]
        families = {rank.spec.family for rank in self.setting.ranks}
        if not any(y.kind == "latent" for y in layers) or (
            self.expands and any(map(expanded, families))
        ):
            return self.language
        return self.language.only(lambda name: self.types[name].latent is not None)

    @property
    def kind(self) -> CacheType:
        """How rows are stored; K's type where V has another."""
        return self.types[self.expressed.k]

    @property
    def notes(self) -> list[str]:
        """What the reader has to know about the engine's figures."""
        notes = [f"{self.title}: {lost}" for lost in self.expressed.lost]
        notes += self._device_notes()
        if self.expressed.k == "auto":
            notes.append(f"{self.title}: auto follows the checkpoint; 16 bits are counted")
        if self.types and self.kind.name != self.types[self.expressed.k].name:
            notes.append(f"{self.title} stores this model's rows as {self.kind.name}")
        if self.expands and any(expanded(rank.spec.family) for rank in self.setting.ranks):
            notes.append(f"{self.title} stores K and V of every head, not this model's latent rows")
        return notes

    def _device_notes(self) -> list[str]:
        """Options of the question that the engine does not have."""
        counts = {n: getattr(self.setting.parallel, n) for n in self.lacks}
        notes = [
            f"{self.title} has no option for --{name} {count}: the figures are what it would give"
            for name, count in counts.items()
            if count > 1
        ]
        if self.setting.inflight is not None and self.inflight_words:
            notes.append(f"{self.title}: --inflight {self.inflight_words}")
        return notes

    @abstractmethod
    def rank_bytes(self, rank: Rank, context: int) -> int:
        """Bytes that one request of ``context`` tokens reserves on a device."""

    def request_bytes(self, context: int) -> int:
        """The same on the fullest device."""
        return max(self.rank_bytes(rank, context) for rank in self.setting.ranks)

    def concurrency(self, available: int, context: int) -> float | None:
        """Requests of ``context`` tokens that ``available`` bytes a device hold at once."""
        each = self.request_bytes(context)
        return available / each if each else None

    def pool_tokens(self, available: int, context: int) -> int | None:
        """Tokens that ``available`` bytes hold, as the engine's log counts them."""
        return self.longest(available)

    def longest(self, available: int, batch: int = 1) -> int | None:
        """The longest context of ``batch`` requests; None where every length fits."""

        def holds(context: int) -> bool:
            at_once = self.concurrency(available, context)
            return at_once is None or at_once >= batch

        return most(holds)

    @abstractmethod
    def budget(self, memory: int, weights: int, activations: int) -> int:
        """Bytes of a device's ``memory`` that are left for KV; below zero where none are."""


def expanded(family: str) -> bool:
    """Whether engines store the heads of this family that its latent rows could give back."""
    return family == "minicpm3"


def most(fits: Callable[[int], bool]) -> int | None:
    """The largest n for which ``fits``, 0 if none; None where all up to 2^40 do."""
    if fits(LONGEST):
        return None
    low, high = 0, LONGEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def up(number: int, multiple: int) -> int:
    """Rounded up."""
    return -(-number // multiple) * multiple
