"""What the tests of the engine share: prompts, and an engine that holds nothing."""

from __future__ import annotations

import random

from kvik.engine.engine import Engine
from kvik.testing import models


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    """Token ids for the tiny models, the same for the same seed."""
    chance = random.Random(seed)
    return tuple(chance.randrange(models.VOCAB) for _ in range(length))


def whole(engine: Engine) -> bool:
    """Whether nothing is held but what the prefix cache can give up."""
    if engine.prefixes is not None:
        engine.prefixes.clear()
    return engine.cache.pool.stats().free == engine.cache.pool.nbytes
