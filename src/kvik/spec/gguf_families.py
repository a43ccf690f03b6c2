"""The GGUF architectures whose caches are known, and llama.cpp's rules for absent keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Arch:
    """How layers of one architecture alternate where the file does not say.

    With a window, the last layer of every ``period`` sees everything (with ``dense_first`` the
    first); 0 means that no rule is known and the file must have the pattern, or no window.
    ``window`` is the window of files that never say it. ``unread_window``: llama.cpp does not
    read it or turns it off, while kvik's own decoder applies it to every layer. ``recurrent``
    tells what a layer without KV heads is: a recurrence, or ``nothing`` (a block without
    attention). ``parallel`` layers have both. ``interval`` is the default distance of attention
    layers among recurrent ones.
    ``unshared`` is how many layers keep their own cache where the file does not say.
    """

    period: int = 0
    dense_first: bool = False
    window: int | None = None
    chunked: bool = False
    unread_window: bool = False
    recurrent: Literal["", "mamba", "conv", "kda", "nothing"] = ""
    parallel: bool = False
    interval: int = 0
    unshared: int | None = None


_MAMBA = Arch(recurrent="mamba")
_DELTA = Arch(recurrent="mamba", interval=4)

_NAMES: dict[str, Arch] = {
    "llama": Arch(unread_window=True),
    "falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bloom stablelm qwen qwen2 "
    "qwen2moe qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe phi2 phimoe codeshell orion internlm2 "
    "minicpm minicpm3 gemma starcoder2 xverse command-r dbrx olmo olmoe deepseek deepseek2 "
    "deepseek32 chatglm glm4 glm4moe glm-dsa bitnet jais jais2 nemotron exaone granite granitemoe "
    "bailingmoe bailingmoe2 dots1 arcee ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense smollm3 "
    "seed_oss apertus minimax-m2 mistral3 mistral4 openelm arctic": Arch(),
    "phi3": Arch(unread_window=True),
    "deci": Arch(recurrent="nothing"),
    "gemma2": Arch(period=2, window=4096),
    "gpt-oss": Arch(period=2),
    "gemma3 gemma-embedding": Arch(period=6),
    "gemma3n": Arch(period=5, unshared=20),
    "gemma4": Arch(),
    "olmo2 olmo3 cohere2 exaone4 exaone-moe afmoe mellum muse": Arch(period=4),
    "llama4": Arch(period=4, window=8192, chunked=True),
    "plamo3": Arch(period=8),
    "smallthinker cohere2moe laguna": Arch(period=4, dense_first=True),
    "mimo2 step35 deepseek4": Arch(),
    "mamba mamba2 jamba nemotron_h nemotron_h_moe granitehybrid plamo2": _MAMBA,
    "falcon-h1": Arch(recurrent="mamba", parallel=True),
    "qwen3next qwen35 qwen35moe": _DELTA,
    "kimi-linear": Arch(recurrent="kda"),
    "lfm2 lfm2moe": Arch(recurrent="conv"),
}

ARCHS: dict[str, Arch] = {name: arch for names, arch in _NAMES.items() for name in names.split()}
