"""One text through one model under observation; returns what ``inspect.json`` holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvik import machine
from kvik.errors import CapacityError, KvikError, SpecError
from kvik.evaluate.provenance import environment, shown_name
from kvik.evaluate.text import chosen_text, windows
from kvik.models.sources import Progress as Fetching

if TYPE_CHECKING:
    from kvik.evaluate.inspect.observe import LayerFigures
    from kvik.models import Model
    from kvik.spec import ModelSpec

# The least text with an informative middle: 4-bit groups of 32 tokens, choices among 32.
LEAST = 64
# Blocks of weights and what is made of them, and what the allocator keeps; measured.
BLOCKS_BYTES = 320 << 20


@dataclass(frozen=True)
class Prepared:
    """Everything that is checked and read before the model is loaded."""

    model: str
    path: Path
    ids: tuple[int, ...]
    text: str
    layers: int
    warnings: tuple[str, ...]


def prepare(
    model: str,
    *,
    context: int,
    text: str | Path | None = None,
    fetching: Fetching | None = None,
) -> Prepared:
    """Check the text, the model and the room; KvikError before anything heavy happens."""
    if context < LEAST:
        raise KvikError(
            f"--context {context} is too short to see where attention goes: give at least {LEAST}"
        )
    name, prose = chosen_text(text)
    from kvik.models import sources
    from kvik.spec import load_spec

    path = sources.resolve(model, fetching)
    spec = load_spec(path)
    if all(layer.kind == "state" for layer in spec.layers):
        raise SpecError(f"{model} keeps states and no K and V: there is nothing to inspect")
    check_memory(spec, context)
    from kvik.models.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_path(path)
    ids = tokenizer.encode(prose, bos=True, special=False)
    warnings = []
    if context > spec.context:
        warnings.append(
            f"{context:,} tokens are beyond the {spec.context:,} that {model} was trained on"
        )
    cut = windows(ids, context, 1, what=name)[0]
    return Prepared(model, path, tuple(cut), name, len(spec.layers), tuple(warnings))


def memory_needed(spec: ModelSpec, tokens: int) -> int:
    """Bytes beside the weights, at most: the fp32 cache, one layer's copies, the activations."""
    from kvik.plan import kv_bytes
    from kvik.recipe import Recipe

    cache = kv_bytes(Recipe.parse("fp32").resolve(spec), tokens).total
    rows = [layer.row_values for layer in spec.layers]
    queries = max(layer.heads * layer.k_dim for layer in spec.layers)
    # In float64: K, V, K after RoPE, as many flat, and what errors and likeness take in turn.
    copies = 8 * 8 * max(rows) * tokens
    held = 4 * tokens * sum(rows[i] for i in {x.source for x in spec.layers} if i is not None)
    activations = 4 * tokens * (4 * spec.hidden + 3 * spec.ffn + 3 * queries)
    return cache + copies + held + activations + BLOCKS_BYTES


def check_memory(spec: ModelSpec, tokens: int) -> None:
    """CapacityError when that is more than there is."""
    need, have = memory_needed(spec, tokens), machine.available_memory()
    if need > have:
        raise CapacityError(
            f"inspecting {tokens:,} tokens needs {machine.human_bytes(need)} and "
            f"{machine.human_bytes(have)} are available: give a smaller --context"
        )


def observe(
    model: Model, ids: Iterable[int], done: Callable[[int], None] = lambda layer: None
) -> list[LayerFigures]:
    """The figures of every layer while ``model`` reads ``ids`` into a full fp32 cache."""
    import torch

    from kvik.engine.session import Session
    from kvik.evaluate.inspect.observe import Observer

    tokens = torch.tensor(list(ids), dtype=torch.int64)
    session = Session(model, "fp32", max_tokens=len(tokens))
    cache = session.cache
    cache.plan([cache.create()], [len(tokens)])
    try:
        observer = Observer(cache, model.spec, done)
        model.forward(tokens, cache.positions, observer, torch.zeros(0, dtype=torch.int64))
    finally:
        cache.abort()
        session.close()
    return [observer.layers[i] for i in range(len(model.spec.layers))]


def run(prepared: Prepared, done: Callable[[int], None]) -> dict[str, Any]:
    """Load the model and measure; ``done`` hears of each layer."""
    from kvik.evaluate.inspect.document import layer_facts
    from kvik.evaluate.inspect.findings import findings
    from kvik.models import load_model

    model = load_model(prepared.path, context=len(prepared.ids))
    layers = [layer_facts(figures) for figures in observe(model, prepared.ids, done)]
    document = {
        "model": shown_name(prepared.model),
        "text": prepared.text,
        "context": len(prepared.ids),
        "counted_from": len(prepared.ids) // 2,
        "memory_bytes": memory_needed(model.spec, len(prepared.ids)),
        "env": environment(machine.threads()),
        "layers": layers,
    }
    document["findings"] = [vars(finding) for finding in findings(document)]
    return document
