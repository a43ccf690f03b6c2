"""A question to the planner in one line."""

from __future__ import annotations

from typing import Any

from kvik.plan.document import document
from kvik.plan.fit import Load
from kvik.plan.ranks import Parallel
from kvik.plan.request import Request
from kvik.spec import ModelSpec
from kvik.spec.load import find_spec

GIB, MIB = 1 << 30, 1 << 20


def request(model: str | ModelSpec, context: int, kv: str = "fp16", **more: Any) -> Request:
    """``tp``, ``cp`` and ``pp`` beside the fields of a request."""
    spec = find_spec(model) if isinstance(model, str) else model
    parallel = Parallel(more.pop("tp", 1), more.pop("cp", 1), more.pop("pp", 1))
    return Request(spec, kv, context, parallel=parallel, **more)


def ask(model: str | ModelSpec, context: int, kv: str = "fp16", **more: Any) -> dict[str, Any]:
    """The whole answer; ``available`` and ``weights`` as on the command line."""
    available, weights = more.pop("available", None), more.pop("weights", "as-is")
    made = request(model, context, kv, **more)
    return document(made, Load(context, made.batch, made.memory, available), weights)
