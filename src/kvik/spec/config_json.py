"""ModelSpec from a Hugging Face ``config.json`` of a family that the decoder runs.

Gemma 2 and 3 are read here, the others in :mod:`kvik.spec.config_plain`. A field that published
files leave out has the default that transformers gives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kvik.spec.config_plain import PLAIN, spec_from_plain
from kvik.spec.families import FAMILIES
from kvik.spec.fields import MAX_HEAD_DIM, MAX_LAYERS, Fields
from kvik.spec.heeded import FULL, SLIDING, refuse_kinds, refuse_other_names, refuse_unmasked
from kvik.spec.hf_config import cache_layers, settled
from kvik.spec.jsonfile import model_name, read_json
from kvik.spec.model import LayerSpec, ModelSpec
from kvik.spec.rope import config_rope, rope_params


def spec_from_config(path: Path) -> ModelSpec:
    """Read the config.json at ``path``."""
    fields = Fields(read_json(path), str(path))
    return _builder(fields)(fields, model_name(path.absolute().parent))


def _builder(fields: Fields) -> Callable[[Fields, str], ModelSpec]:
    # `architectures` says more than `model_type` (a classifier is "llama" too), but may be absent.
    classes: Any = fields.get("architectures") or []
    if not isinstance(classes, list):
        raise fields.wrong("architectures", "a list")
    found = [str(name) for name in classes] or [fields.text("model_type")]
    for name in found:
        kind = ARCHITECTURES.get(name, name)
        if kind in BUILDERS:
            # transformers goes by `model_type`: another family's would be computed otherwise.
            fields.refuse("model_type", kind)
            return BUILDERS[kind]
    known = ", ".join(ARCHITECTURES)
    raise fields.fault(f"the architecture {found[0][:80]!r} is not supported; {known} are")


def _gemma2(fields: Fields, name: str) -> ModelSpec:
    family = FAMILIES["gemma2"]
    fields = settled(fields, family)
    refuse_unmasked(fields)
    fields.refuse("use_bidirectional_attention", False)
    refuse_other_names(fields)
    if "layer_types" not in fields:
        fields.refuse("sliding_window_pattern", 2)
    fields.refuse("hidden_activation", "gelu_pytorch_tanh")
    hidden, context = fields.integer("hidden_size"), fields.integer("max_position_embeddings")
    params = rope_params(fields)
    for said in (fields, params):
        said.refuse("partial_rotary_factor", 1)
    theta = fields.number("rope_theta", 1e4)
    layers = cache_layers(fields, family)
    fields.refuse("v_head_dim", layers[0].k_dim)
    refuse_kinds(fields, layers, heeded=True, windowed=False)
    rope = config_rope(params, dim=layers[0].k_dim, theta=theta, context=context)
    return ModelSpec(
        name=name,
        family="gemma2",
        layers=tuple(
            replace(
                layer,
                rope=rope,
                scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
                softcap=fields.optional_number("attn_logit_softcapping"),
            )
            for layer in layers
        ),
        context=context,
        vocab=fields.integer("vocab_size"),
        hidden=hidden,
        ffn=fields.integer("intermediate_size"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation="gelu_tanh",
        tied=fields.flag("tie_word_embeddings", True),
        embed_scale=hidden**0.5,
        post_norms=True,
        attention_bias="qkvo" if fields.flag("attention_bias", False) else "",
        final_softcap=fields.optional_number("final_logit_softcapping"),
    )


def _gemma3_nested(fields: Fields, name: str) -> ModelSpec:
    """The text model of a Gemma 3 that also sees images."""
    if "text_config" not in fields:
        raise fields.fault("the field text_config is missing")
    refuse_unmasked(fields)
    return _gemma3(fields.sub("text_config"), name, fields.flag("tie_word_embeddings", True))


def _gemma3(fields: Fields, name: str, tied: bool = True) -> ModelSpec:
    refuse_unmasked(fields)
    fields.refuse("use_bidirectional_attention", False)
    # transformers has the field and does not apply it.
    fields.refuse("attn_logit_softcapping")
    fields.refuse("hidden_activation", "gelu_pytorch_tanh")
    hidden = fields.integer("hidden_size")
    layers = {kind: _gemma3_layer(fields, kind) for kind in (FULL, SLIDING)}
    return ModelSpec(
        name=name,
        family="gemma3",
        layers=tuple(layers[kind] for kind in _gemma3_kinds(fields)),
        context=fields.integer("max_position_embeddings", 131_072),
        vocab=fields.integer("vocab_size", 262_208),
        hidden=hidden,
        ffn=fields.integer("intermediate_size"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        activation="gelu_tanh",
        tied=fields.flag("tie_word_embeddings", tied),
        embed_scale=hidden**0.5,
        qk_norm=True,
        post_norms=True,
        attention_bias="qkvo" if fields.flag("attention_bias", False) else "",
        final_softcap=fields.optional_number("final_logit_softcapping"),
    )


def _gemma3_kinds(fields: Fields) -> list[str]:
    count = fields.integer("num_hidden_layers", most=MAX_LAYERS)
    if "layer_types" in fields:
        kinds = fields.sequence("layer_types", count)
        if any(kind not in (FULL, SLIDING) for kind in kinds):
            raise fields.wrong("layer_types", f"a list of {FULL} and {SLIDING}")
        return kinds
    period = fields.integer("sliding_window_pattern", 6)
    return [SLIDING if (i + 1) % period else FULL for i in range(count)]


def _gemma3_layer(fields: Fields, kind: str) -> LayerSpec:
    heads = fields.integer("num_attention_heads", 8)
    head_dim = fields.integer("head_dim", 256, most=MAX_HEAD_DIM)
    sliding, params = kind == SLIDING, _gemma3_rope_params(fields, kind)
    params.refuse("partial_rotary_factor", 1)
    theta_field, theta = ("rope_local_base_freq", 1e4) if sliding else ("rope_theta", 1e6)
    return LayerSpec(
        "sliding" if sliding else "full",
        heads,
        fields.integer("num_key_value_heads", 4),
        head_dim,
        head_dim,
        window=fields.integer("sliding_window", 4096) if sliding else None,
        rope=config_rope(
            params,
            dim=head_dim,
            theta=fields.number(theta_field, theta),
            context=fields.integer("max_position_embeddings", 131_072),
        ),
        scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
    )


def _gemma3_rope_params(fields: Fields, kind: str) -> Fields:
    """What is said of one kind of layer, by transformers 5 or before it."""
    if "rope_scaling" in fields:
        # The older field meant the layers that see everything, and came without the newer one.
        fields.refuse("rope_parameters")
        return fields.sub("rope_scaling" if kind == FULL else "rope_parameters")
    params = fields.sub("rope_parameters")
    if fields.get("rope_parameters") and FULL not in params and SLIDING not in params:
        raise fields.wrong("rope_parameters", f"an object with {FULL} and {SLIDING}")
    return params.sub(kind)


BUILDERS: dict[str, Callable[[Fields, str], ModelSpec]] = {
    **{kind: partial(spec_from_plain, kind) for kind in PLAIN},
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gemma3": _gemma3_nested,
}
# Class names as `architectures` has them, and the `model_type` that goes with each.
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Phi3ForCausalLM": "phi3",
    "SmolLM3ForCausalLM": "smollm3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3",
}
