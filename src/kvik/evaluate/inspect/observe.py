"""Listens at a model's cache while it reads a text, and measures every layer as it passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvik.errors import KvikError, ModelError
from kvik.evaluate.inspect.attention import Attention, attention, blocks
from kvik.evaluate.inspect.chosen import Chosen, chosen
from kvik.evaluate.inspect.coded import output_errors
from kvik.evaluate.inspect.stored import Stored, stored
from kvik.models.parts import StepCache
from kvik.ops import Scoring, angles, rotate
from kvik.spec import LayerSpec, ModelSpec


@dataclass(frozen=True)
class LayerFigures:
    """The figures of a layer; where a part is None, ``why`` has the reason.

    ``coded`` is what :func:`output_errors` says.
    """

    layer: int
    spec: LayerSpec
    attention: Attention | None
    chosen: Chosen | None
    stored: Stored | None
    coded: Mapping[str, Tensor] = field(default_factory=dict)
    why: tuple[str, ...] = ()


class Observer:
    """A StepCache that passes everything on to another and measures what it sees on the way.

    The step must hold one whole text from its first token on. What the model computes is what the
    cache behind gives: nothing of the model is changed, and its layers know nothing of it. Keys of
    a layer are dropped once it is measured, unless a later layer reads them too.
    """

    def __init__(
        self, cache: StepCache, spec: ModelSpec, done: Callable[[int], None] = lambda layer: None
    ) -> None:
        self._cache, self._spec, self._done = cache, spec, done
        self._sources = {layer.source for layer in spec.layers if layer.kind == "shared"}
        self._held: dict[int, Tensor] = {}
        self.layers: dict[int, LayerFigures] = {}

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Those of the cache behind."""
        return self._cache.spans

    def attend(
        self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """What the cache behind says, after a look at q, k and v."""
        if len(self.spans) != 1 or layer in self.layers:
            raise KvikError("one text in one step can be observed, and only once")
        self.layers[layer] = self._measure(layer, q, k, v)
        self._done(layer)
        return self._cache.attend(layer, q, k, v)

    def places(self, layers: Sequence[int]) -> None:
        """None: what the layers ask has to come by here."""

    def read_state(self, layer: int) -> Tensor:
        """That of the cache behind."""
        return self._cache.read_state(layer)

    def write_state(self, layer: int, state: Tensor) -> None:
        """Passed on; the layer keeps a state and no tokens, so there is nothing to measure."""
        why = "keeps a state of fixed size and no tokens"
        self.layers[layer] = LayerFigures(
            layer, self._spec.layers[layer], None, None, None, why=(why,)
        )
        self._done(layer)
        self._cache.write_state(layer, state)

    def _measure(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> LayerFigures:
        spec = self._spec.layers[layer]
        for name, x in (("queries", q), ("keys", k), ("values", v)):
            if x is not None and not bool(x.isfinite().all()):
                raise ModelError(f"layer {layer} gives {name} that are not finite numbers")
        query = q.view(len(q), spec.kv_heads, spec.group, -1).permute(1, 2, 0, 3)
        query = _turned(query, spec)
        # What is seen is what the layer that stores the keys keeps.
        source = layer if spec.source is None else spec.source
        seen = self._spec.layers[source]
        if k is not None:
            keys = _turned(k.transpose(0, 1), spec)
            if layer in self._sources:
                self._held[layer] = keys
        else:
            keys = self._held[source]
        scoring = Scoring(spec.scale, spec.softcap)
        figures = attention(blocks(query, keys, seen, scoring), seen, len(q))
        why = []
        choice = chosen(figures, keys, seen)
        if choice is None:
            why.append("sees too few tokens at the middle of the text to choose among")
        own, coded = None, {}
        if spec.kind == "latent":
            why.append("its one latent row is K and V in one, and of low rank by design")
        elif k is None or v is None:
            why.append(f"stores nothing and reads the cache of layer {source}")
        else:
            before, values = k.transpose(0, 1), v.transpose(0, 1)
            own = stored(before, keys, values)
            coded = output_errors(query, before, keys, values, spec)
        return LayerFigures(layer, spec, figures, choice, own, coded, tuple(why))


def _turned(x: Tensor, spec: LayerSpec) -> Tensor:
    """``x`` [..., T, D] rotated at the positions 0 .. T - 1."""
    if spec.rope is None:
        return x
    at = torch.arange(x.shape[-2])
    return rotate(x, spec.rope, *angles(spec.rope, at, x.dtype))
