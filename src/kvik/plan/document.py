"""The answer of ``kvik plan`` as JSON has it."""

from __future__ import annotations

from typing import Any

from kvik.plan.data import LayerData, number, total
from kvik.plan.fit import ACTIVATION_RULE, Fit, Load, fit
from kvik.plan.request import Request
from kvik.plan.weights import weight_bytes

KEPT_RULE = "macOS gives the GPU about 75 % of what they share (sysctl iogpu.wired_limit_mb)"


def document(
    request: Request, load: Load, weights: str = "as-is", device: str | None = None
) -> dict[str, Any]:
    """All figures. ``kv`` counts one copy of the model, ``engine`` the fullest device."""
    spec, engine, layers = request.spec, request.engine_rules, request.layers
    state = sum(layer.state for layer in layers)
    data = sum(layer.nbytes for layer in layers)
    size, words = weight_bytes(spec.params, weights, spec.stored)
    shares = request.parallel.tp * request.parallel.pp
    found = fit(spec, engine, None if size is None else -(-size // shares), load)
    notes = [*engine.notes, words, *_warnings(request, load, found)]
    if load.memory is not None:
        if load.kept:
            notes.append(f"the system keeps {load.kept:,} B of the memory: {KEPT_RULE}")
        notes += [f"{engine.title} has for KV: {engine.fit_rule}", ACTIVATION_RULE]
    return {
        "model": spec.name,
        "context": request.context,
        "batch": request.batch,
        "recipe": request.kv if request.recipe is None else str(request.recipe),
        "kv": {
            "bytes": request.batch * (data + state),
            "bytes_per_token": total(layer.per_token for layer in layers),
            "growth_bytes_per_token": total(layer.growth for layer in layers),
            "state_bytes_per_sequence": state,
            "layers": [_row(layer) for layer in layers],
        },
        "weights": {"bytes": size},
        "engine": {
            "name": engine.name,
            "reserved_bytes_per_request": engine.request_bytes(request.context),
            "pool_tokens": found.pool_tokens,
            "max_concurrency": found.concurrency,
        },
        "device": {"name": device, "memory_bytes": load.memory},
        "fits": found.fits,
        "max_context": found.max_context,
        "max_batch": found.max_batch,
        "notes": list(dict.fromkeys(notes)),
    }


def _row(layer: LayerData) -> dict[str, Any]:
    return {
        "index": layer.index,
        "kind": layer.kind,
        "bytes": layer.nbytes,
        "bytes_per_token": number(layer.per_token),
        "growth_bytes_per_token": number(layer.growth),
        "state_bytes": layer.state,
        "formula": layer.formula,
    }


def _warnings(request: Request, load: Load, found: Fit) -> list[str]:
    notes = []
    spec, parallel, longest = request.spec, request.parallel, found.max_context
    if request.context > spec.context > 0:
        notes.append(
            f"{request.context:,} tokens are more than the {spec.context:,} that the model was "
            "trained for"
        )
    if load.memory is not None and found.fits is None:
        notes.append("fits, max_context and max_batch are empty: the weights are not known")
    elif found.fits is not None and longest is None:
        notes.append("max_context is empty: no length is too long for this cache")
    if longest is not None and longest > spec.context > 0:
        notes.append(
            f"max_context is what memory holds; the model was trained for {spec.context:,} tokens"
        )
    copies = _copies(request)
    if copies > 1:
        notes.append(
            f"--tp {parallel.tp}: KV heads and latent rows that are fewer than the devices lie on "
            f"several; all devices hold {copies:.3g} times the KV of one copy"
        )
    if parallel.pp > 1:
        notes.append(f"--pp {parallel.pp}: the figures of the engine are of the fullest stage")
    return notes


def _copies(request: Request) -> float:
    """How often the rows of a token are stored over all devices of a stage."""
    tp = request.parallel.tp
    one = sum(layer.row_values for layer in request.spec.layers)
    held = sum(
        layer.row_values
        for rank in request.engine_rules.setting.ranks
        for layer in rank.spec.layers
    )
    return tp * held / one / request.parallel.cp if one else 1.0
