"""What fits: weights, activations and K and V in the memory of a device."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvik.plan.engines import Engine
from kvik.plan.engines.base import most
from kvik.spec.model import ModelSpec

ACTIVATION_RULE = (
    "activations: tokens of a step x (4 x hidden + 2 x feed-forward width) x 2 B, and a row of "
    "float32 logits for each request"
)


@dataclass(frozen=True)
class Load:
    """What is asked of a device: bytes of its memory, or of KV alone (``available``).

    Of ``memory`` the system keeps ``kept`` for itself.
    """

    context: int
    batch: int
    memory: int | None = None
    available: int | None = None
    kept: int = 0


@dataclass(frozen=True)
class Fit:
    """Answers; None where nothing was asked or can be told, or where there is no bound.

    ``budget`` is what one device has for KV.
    """

    budget: int | None = None
    fits: bool | None = None
    max_context: int | None = None
    max_batch: int | None = None
    pool_tokens: int | None = None
    concurrency: float | None = None


def activation_bytes(spec: ModelSpec, engine: Engine, context: int, batch: int) -> int:
    """The rule above, on one device."""
    tp = engine.setting.parallel.tp
    tokens = min(engine.step_tokens(context), context * batch)
    width = 4 * spec.hidden + 2 * -(-spec.ffn // tp)
    return 2 * tokens * width + 4 * batch * spec.vocab


def fit(spec: ModelSpec, engine: Engine, weights: int | None, load: Load) -> Fit:
    """Whether the load fits, and how far it could grow in each direction.

    ``weights`` that are not known leave everything open, unless the memory is for KV alone.
    """
    if load.memory is None and load.available is None:
        return Fit()
    if weights is None and load.memory is not None:
        return Fit()

    def budget(context: int, batch: int) -> int:
        if load.memory is None:
            assert load.available is not None
            return load.available
        assert weights is not None
        usable = load.memory - load.kept
        return engine.budget(usable, weights, activation_bytes(spec, engine, context, batch))

    def holds(context: int, batch: int) -> bool:
        room = budget(context, batch)
        if room < 0:
            return False
        at_once = engine.concurrency(room, context)
        return at_once is None or math.floor(at_once) >= batch

    room = max(0, budget(load.context, load.batch))
    batch = most(lambda n: holds(load.context, n))
    return Fit(
        budget=room,
        fits=holds(load.context, load.batch),
        max_context=most(lambda n: holds(n, load.batch)),
        max_batch=batch,
        pool_tokens=engine.pool_tokens(room, load.context),
        concurrency=engine.concurrency(room, load.context),
    )
