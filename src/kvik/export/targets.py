"""The engines that can be exported to, by name."""

from __future__ import annotations

from collections.abc import Callable

from kvik.export.base import Exported
from kvik.export.llamacpp import llamacpp
from kvik.export.sglang import sglang
from kvik.export.transformers import transformers
from kvik.export.trtllm import trtllm
from kvik.export.vllm import vllm
from kvik.plan.request import Request

TARGETS: dict[str, Callable[[Request, str], Exported]] = {
    "vllm": vllm,
    "sglang": sglang,
    "llamacpp": llamacpp,
    "trtllm": trtllm,
    "transformers": transformers,
}
