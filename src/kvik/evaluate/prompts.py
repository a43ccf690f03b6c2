"""Tokens for a measurement, from a model's tokenizer alone: the weights load in the workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvik.engine.conversation import chat_spelling

if TYPE_CHECKING:
    from kvik.models.tokenizer import Tokenizer


def chat_prompt(tokenizer: Tokenizer) -> Callable[[str], list[int]] | None:
    """A user's message as the model's chat template has it; None for models without one."""
    spell = chat_spelling(tokenizer)
    return spell and (lambda text: spell([{"role": "user", "content": text}]))
