"""A whole model in a folder, tiny and random: config, weights, byte-level tokenizer, template."""

from __future__ import annotations

import json
from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_tiny_model(folder: Path, *, context: int = 4096, chat: bool = True) -> Path:
    """Two Llama layers of random weights that spell in bytes; deterministic."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t) for t in ("<|im_start|>", "<|im_end|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>"} | ({"chat_template": TEMPLATE} if chat else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    hidden, ffn, vocab, heads, kv_heads, dim = 64, 96, tokenizer.get_vocab_size(), 4, 2, 32
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "max_position_embeddings": context,
        "vocab_size": vocab,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    draw = torch.Generator().manual_seed(7)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=draw) * gain * columns**-0.5

    weights = {"model.embed_tokens.weight": matrix(vocab, hidden, 4.0)}
    for i in range(2):
        at = f"model.layers.{i}"
        weights |= {
            f"{at}.self_attn.q_proj.weight": matrix(heads * dim, hidden, 2.0),
            f"{at}.self_attn.k_proj.weight": matrix(kv_heads * dim, hidden),
            f"{at}.self_attn.v_proj.weight": matrix(kv_heads * dim, hidden),
            f"{at}.self_attn.o_proj.weight": matrix(hidden, heads * dim),
            f"{at}.mlp.gate_proj.weight": matrix(ffn, hidden),
            f"{at}.mlp.up_proj.weight": matrix(ffn, hidden),
            f"{at}.mlp.down_proj.weight": matrix(hidden, ffn),
            f"{at}.input_layernorm.weight": torch.ones(hidden),
            f"{at}.post_attention_layernorm.weight": torch.ones(hidden),
        }
    save_file(weights | {"model.norm.weight": torch.ones(hidden)}, folder / "model.safetensors")
    return folder
