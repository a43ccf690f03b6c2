"""The families of models whose caches are known, by ``model_type``.

A family says which kind each layer has, what a layer of that kind stores, and what its
recurrent layers keep. A name that is not here is refused: another model's rule may not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvik.spec import heads, kinds, sharing, states
from kvik.spec.fields import Fields
from kvik.spec.heads import Layer
from kvik.spec.kinds import Kinds
from kvik.spec.model import LayerSpec, StatePart

State = Callable[[Fields], tuple[StatePart, ...]]
Finish = Callable[[Fields, tuple[LayerSpec, ...]], tuple[LayerSpec, ...]]


@dataclass(frozen=True)
class Family:
    """The rules of one family.

    ``parallel`` families have attention and a recurrence in the same layer. ``tied`` is what an
    absent ``tie_word_embeddings`` means, ``defaults`` are sizes that published files leave out
    (``absent`` those for which null says something else), ``names`` maps the usual names of
    sizes to the family's own. ``unwindowed`` names the engines that apply no window of this family.
    """

    kinds: Kinds = kinds.full
    layer: Layer = heads.grouped
    state: State | None = None
    finish: Finish | None = None
    parallel: bool = False
    tied: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)
    absent: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    unwindowed: tuple[str, ...] = ()


# llama.cpp reads no window for the architectures that these families are converted to (its llama,
# mistral3, starcoder2, qwen2, qwen3, phimoe, deci), and turns that of phi3 off.
_LLAMA_CPP = ("llamacpp",)
_GEMMA2 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 256_000,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
}
_GEMMA2_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_GEMMA3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
_WHISPER = {
    "num_hidden_layers": "decoder_layers",
    "num_attention_heads": "decoder_attention_heads",
    "intermediate_size": "decoder_ffn_dim",
    "max_position_embeddings": "max_target_positions",
}

_NAMES: dict[str, Family] = {
    # Full attention on every layer.
    "llama gpt_neox gptj codegen phi persimmon stablelm olmo olmo2 olmoe "
    "flex_olmo granite granitemoe granitemoeshared nemotron internlm internlm2 internlm3 aquila "
    "baichuan glm glm4 glm4v_text glm4_moe glm4v_moe_text minicpm exaone seed_oss arcee apertus "
    "bitnet dots1 minimax_m2 jais2 helium solar_open xverse orion qwen": Family(),
    "mllama_text_model": Family(kinds.mllama),
    "gemma cohere ernie4_5 ernie4_5_moe palm hunyuan_v1_dense": Family(tied=True),
    "smollm3": Family(kinds.smollm3, tied=True),
    "gpt2 opt bloom biogpt": Family(layer=heads.opt, tied=True),
    "falcon RefinedWeb RefinedWebModel gpt_bigcode": Family(layer=heads.falcon, tied=True),
    "chatglm": Family(layer=heads.chatglm),
    "mpt": Family(layer=heads.inner_config("attn_config"), tied=True),
    "dbrx": Family(layer=heads.inner_config("attn_config")),
    "nemotron-nas deci": Family(kinds.heedless, heads.blocks, unwindowed=_LLAMA_CPP),
    "hunyuan hunyuan_v1_moe": Family(finish=sharing.cross_layer, tied=True),
    "whisper": Family(kinds.heedless, heads.whisper, tied=True, names=_WHISPER),
    # Windows and chunks.
    # Without the field, Mistral has the window of its first model; null means none.
    "mistral": Family(kinds.windowed, absent={"sliding_window": 4096}, unwindowed=_LLAMA_CPP),
    "ministral ministral3 mixtral phi3 phimoe": Family(kinds.windowed, unwindowed=_LLAMA_CPP),
    "starcoder2": Family(kinds.windowed, tied=True, unwindowed=_LLAMA_CPP),
    "qwen2 qwen2_moe qwen3 qwen3_moe qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen3_vl "
    "qwen3_vl_text qwen3_vl_moe qwen3_vl_moe_text qwen3_omni_moe_text mimo": Family(
        kinds.qwen, unwindowed=_LLAMA_CPP
    ),
    "gemma2": Family(kinds.every(2), tied=True, defaults=_GEMMA2, absent=_GEMMA2_CAPS),
    "gpt_oss": Family(kinds.every(2)),
    "gemma3 gemma3_text": Family(kinds.every(6), tied=True, defaults=_GEMMA3),
    "gemma3n gemma3n_text": Family(
        kinds.every(5),
        finish=sharing.last_of_kind,
        tied=True,
        defaults={"num_kv_shared_layers": 15},
    ),
    "gemma4 gemma4_text gemma4_unified gemma4_unified_text": Family(
        kinds.every(6), heads.gemma4, finish=sharing.last_of_kind, tied=True
    ),
    "cohere2": Family(kinds.every(4), tied=True),
    "olmo3": Family(kinds.every(4)),
    "exaone4": Family(kinds.exaone),
    "afmoe": Family(kinds.every(4, "global_attn_every_n_layers")),
    "llama4 llama4_text": Family(kinds.llama4),
    "mimo_v2_flash": Family(kinds.mimo, heads.mimo),
    "step3p7": Family(kinds.step3, heads.step3),
    # Latent attention.
    "deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite mistral4 sarvam_mla": Family(
        kinds.heedless, heads.latent
    ),
    # transformers calls twice num_layers num_hidden_layers; original files say num_layers alone.
    "longcat_flash": Family(
        kinds.heedless,
        heads.latent,
        finish=sharing.twice,
        names={"num_hidden_layers": "num_layers"},
    ),
    "minicpm3": Family(kinds.heedless, heads.minicpm3, tied=True),
    "deepseek_v32 glm_moe_dsa": Family(kinds.heedless, heads.indexed),
    "deepseek_v4 deepseek_ref": Family(kinds.heedless, heads.deepseek_v4),
    "kimi_linear": Family(kinds.kimi_linear, heads.latent, states.kimi_delta),
    "minimax_m3 minimax_m3_vl minimax_m3_vl_text": Family(kinds.heedless, heads.minimax_m3),
    # Recurrences.
    "qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text": Family(
        kinds.qwen_next, state=states.gated_delta_net
    ),
    "jamba": Family(kinds.jamba, state=states.mamba1),
    "bamba": Family(kinds.bamba, state=states.mamba2),
    "granitemoehybrid": Family(kinds.bamba, state=states.mamba2),
    "nemotron_h": Family(kinds.nemotron_h, state=states.mamba2),
    "falcon_h1": Family(kinds.heedless, state=states.mamba2, parallel=True),
    "mamba falcon_mamba": Family(kinds.recurrent, state=states.mamba1, tied=True),
    "mamba2": Family(kinds.recurrent, state=states.mamba2),
    "minimax minimax_text_01 minimax_m1": Family(kinds.minimax, state=states.lightning),
    "lfm2 lfm2_moe": Family(kinds.lfm2, state=states.short_conv, tied=True),
}

FAMILIES: dict[str, Family] = {
    name: family for names, family in _NAMES.items() for name in names.split()
}
