"""Chat templates: messages to the text, or the ids, that a model was trained to read.

A template is a program that came with the model. It runs in jinja2's sandbox, in a process of its
own (`template_worker`), under limits on its memory, its processor time and its output: no hook
inside our own process stops one long call into C such as ``'a' * 10 ** 9`` or ``2 ** 10 ** 9``,
and a thread cannot be killed. The process is started once and kept: a render takes about a
millisecond after the first. A worker that runs over its time is killed, and the next one is new.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from kvik.errors import KvikError
from kvik.models.template_process import TemplateError, run
from kvik.models.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant", "tool", "developer")
MAX_TEMPLATE = 1 << 18  # characters; the longest in use have about 2 ** 15

Message = Mapping[str, Any]


class ChatError(KvikError):
    """Messages or a template that make no chat."""


def render(
    template: str,
    messages: Sequence[Message],
    *,
    bos_token: str | None,
    eos_token: str | None,
    add_generation_prompt: bool = True,
) -> str:
    """The text of ``messages`` under ``template``, as transformers' apply_chat_template has it.

    ``add_generation_prompt``: end with the words that open the assistant's turn. ChatError on bad
    messages, on a template that is broken, refuses the messages, or runs over a limit.
    """
    if len(template) > MAX_TEMPLATE:
        raise ChatError(
            f"the chat template has {len(template)} characters; at most {MAX_TEMPLATE} are run: "
            "give the prompt as plain text"
        )
    try:
        return run(
            {
                "template": template,
                "variables": {
                    "messages": _checked(messages),
                    "tools": None,
                    "documents": None,
                    "bos_token": bos_token or "",
                    "eos_token": eos_token or "",
                    "add_generation_prompt": add_generation_prompt,
                },
            }
        )
    except TemplateError as error:
        raise ChatError(f"the chat template {error}") from error


def render_ids(
    tokenizer: Tokenizer,
    template: str,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
) -> list[int]:
    """The ids of ``messages``, in which only the template writes special tokens.

    ``<|im_end|>`` in a message stays the ten characters that somebody typed (see `guard`).
    The beginning-of-text token is the template's business, as in transformers. A template that
    deletes letters from inside messages could still put a special token together; none does.
    """
    named = {index: text for text, index in tokenizer.control.items()}
    bos = named.get(-1 if tokenizer.bos_id is None else tokenizer.bos_id)
    eos = next((named[index] for index in sorted(tokenizer.eos_ids) if index in named), None)

    def show(messages: Sequence[Message]) -> str:
        return render(
            template,
            messages,
            bos_token=bos,
            eos_token=eos,
            add_generation_prompt=add_generation_prompt,
        )

    checked = _checked(messages)
    guard = tokenizer.guard
    if not guard.finds(checked):
        return tokenizer.encode(show(checked), bos=False)
    mark = _unused_character(checked)
    marked, blank = show(guard.broken(checked, mark)), show(guard.blank(checked))
    control = tokenizer.control_pattern
    if control.findall(marked) != control.findall(blank):
        raise ChatError(
            "a message holds the text of a special token, and the chat template would let it act "
            "as one: take it out of the message"
        )
    ids: list[int] = []
    at = 0
    for own in control.finditer(marked):
        plain = marked[at : own.start()].replace(mark, "")
        ids += tokenizer.encode(plain, bos=False, special=False)
        ids.append(tokenizer.control[own[0]])
        at = own.end()
    return ids + tokenizer.encode(marked[at:].replace(mark, ""), bos=False, special=False)


def _unused_character(messages: list[dict[str, Any]]) -> str:
    """A private-use character that no message holds and no template can know."""
    taken = set(json.dumps(messages, ensure_ascii=False))
    return secrets.choice([char for char in map(chr, range(0xE000, 0xF900)) if char not in taken])


def _checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as plain JSON data, without absent fields; ChatError names the first fault."""
    if isinstance(messages, str | Mapping) or not messages:
        raise ChatError("a chat is a list of at least one message with a role and a content")
    return [_checked_message(f"message {at + 1}", message) for at, message in enumerate(messages)]


def _checked_message(what: str, message: Message) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ChatError(f"{what} is {type(message).__name__}, not an object with role and content")
    role = message.get("role")
    if role not in ROLES:
        near = get_close_matches(str(role), ROLES, 1)
        hint = f" (nearest: {near[0]})" if near else ""
        raise ChatError(f"{what} has the unknown role {role!r}{hint}; known: {', '.join(ROLES)}")
    content = message.get("content")
    if not isinstance(content, str | list) and not (content is None and message.get("tool_calls")):
        raise ChatError(f"{what} has no content: give it a text")
    try:
        plain = json.loads(json.dumps(dict(message)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ChatError(f"{what} cannot be written as JSON ({error})") from error
    return {key: value for key, value in plain.items() if value is not None}
