"""The texts by which models end a turn or a text. Files often name only one of a model's ids.

``</s>`` is not among them: where it ends a text the file says so, and in Gemma it is an HTML tag.
"""

from __future__ import annotations

END_TOKENS = frozenset(
    {
        "<|endoftext|>",  # GPT-2, SmolLM, Qwen
        "<|im_end|>",  # ChatML
        "<|end_of_text|>",  # Llama 3
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",  # Phi-3
        "<end_of_turn>",  # Gemma
    }
)
