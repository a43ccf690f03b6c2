"""How engines reserve memory for K and V: one file each."""

from kvik.plan.engines.base import CacheType, Engine, Setting
from kvik.plan.engines.kvik import Kvik
from kvik.plan.engines.llamacpp import LlamaCpp
from kvik.plan.engines.sglang import Sglang
from kvik.plan.engines.transformers import Transformers
from kvik.plan.engines.trtllm import TrtLlm
from kvik.plan.engines.vllm import Vllm

ENGINES: dict[str, type[Engine]] = {
    engine.name: engine for engine in (Kvik, Vllm, Sglang, LlamaCpp, TrtLlm, Transformers)
}

__all__ = ["ENGINES", "CacheType", "Engine", "Setting"]
