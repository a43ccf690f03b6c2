"""What the weights of a family are made of, beyond what its cache shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Anatomy:
    """The rules that a parameter count needs.

    ``gated`` feed-forward networks have three matrices, others two. A layer has ``norms``
    vectors of the model's width, twice as long with ``norm_bias``. ``qk_norm`` norms q and k for
    each ``head`` or over the whole ``row``. ``biases`` holds q (on q, k and v), o, f (feed-forward)
    and h (output matrix). ``gate`` doubles the query projection. ``alone`` layers are either a
    mixer or a feed-forward network. ``positions`` names the field with the number of learned
    positions, to which ``more_positions`` are added. ``sinks`` adds a value for each head, in
    layers with a window only where it says so. Where the configuration has ``use_qk_norm`` or
    ``attention_bias``, ``asked_norm`` and ``asked_biases`` are what those add.
    ``another_norm`` names a truth value that adds one more norm.
    """

    gated: bool = True
    norms: int = 2
    norm_bias: bool = False
    final_norm: bool = True
    qk_norm: Literal["", "head", "row"] = ""
    biases: str = ""
    gate: bool = False
    alone: bool = False
    positions: str = ""
    more_positions: int = 0
    embedding_norm: bool = False
    sinks: Literal["", "all", "sliding"] = ""
    asked_norm: Literal["", "head", "row"] = ""
    asked_biases: str = "qo"
    another_norm: str = ""


PLAIN = Anatomy()
HEAD_NORM = Anatomy(qk_norm="head")
CLASSIC = Anatomy(gated=False, norm_bias=True, biases="qof")

_NAMES: dict[str, Anatomy] = {
    "llama mistral ministral3 mixtral phi3 deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite mistral4 "
    "longcat_flash deepseek_v32 glm_moe_dsa minicpm3 kimi_linear gemma smollm3 granite granitemoe "
    "granitemoehybrid jamba falcon_h1 nemotron-nas deci internlm2 deepseek_v4 deepseek_ref "
    "palm baichuan helium ernie4_5 granitemoeshared": PLAIN,
    "mamba mamba2": Anatomy(norms=1, alone=True),
    "arcee": Anatomy(gated=False),
    "seed_oss glm": Anatomy(asked_biases="q"),
    "olmoe flex_olmo": Anatomy(qk_norm="row"),
    "exaone4": Anatomy(qk_norm="head"),
    "internlm3 solar_open": PLAIN,
    "codegen": Anatomy(gated=False, norms=1, norm_bias=True, biases="fh"),
    "stablelm": Anatomy(norm_bias=True),
    "qwen2 qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_moe mimo": Anatomy(biases="q"),
    "qwen3 qwen3_moe qwen3_vl qwen3_vl_text qwen3_vl_moe qwen3_vl_moe_text": HEAD_NORM,
    "qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text": Anatomy(
        qk_norm="head", gate=True
    ),
    "gemma2": Anatomy(norms=4),
    "gemma3 gemma3_text gemma3n gemma3n_text gemma4 gemma4_text gemma4_unified "
    "gemma4_unified_text": Anatomy(norms=4, qk_norm="head"),
    "gpt2": Anatomy(gated=False, norm_bias=True, biases="qof", positions="n_positions"),
    "gpt_bigcode": Anatomy(gated=False, norm_bias=True, biases="qof", positions="n_positions"),
    "opt": Anatomy(
        gated=False,
        norm_bias=True,
        biases="qof",
        positions="max_position_embeddings",
        more_positions=2,
    ),
    "bloom": Anatomy(gated=False, norm_bias=True, biases="qof", embedding_norm=True),
    "gptj": Anatomy(gated=False, norms=1, norm_bias=True, biases="fh"),
    "gpt_neox": CLASSIC,
    "starcoder2": CLASSIC,
    "phi": Anatomy(gated=False, norms=1, norm_bias=True, biases="qofh"),
    "falcon": Anatomy(
        gated=False, norms=1, norm_bias=True, another_norm="new_decoder_architecture"
    ),
    "mpt": Anatomy(gated=False),
    "dbrx": PLAIN,
    "olmo2 olmo3": Anatomy(qk_norm="row"),
    "cohere cohere2": Anatomy(norms=1, asked_norm="row"),
    "chatglm": Anatomy(biases=""),
    "glm4": Anatomy(norms=4, asked_biases="q"),
    "glm4_moe": Anatomy(asked_norm="head", asked_biases="q"),
    "minimax_m2": Anatomy(qk_norm="row"),
    "minimax_m3 minimax_m3_vl minimax_m3_vl_text": HEAD_NORM,
    "minimax minimax_text_01 minimax_m1": PLAIN,
    "hunyuan": HEAD_NORM,
    "gpt_oss": Anatomy(biases="qo", sinks="all"),
    "llama4 llama4_text": PLAIN,
    "nemotron_h": Anatomy(gated=False, norms=1, alone=True),
    "lfm2 lfm2_moe": HEAD_NORM,
    "mimo_v2_flash": Anatomy(sinks="sliding"),
    "step3p7": HEAD_NORM,
}

ANATOMIES: dict[str, Anatomy] = {
    name: anatomy for names, anatomy in _NAMES.items() for name in names.split()
}
