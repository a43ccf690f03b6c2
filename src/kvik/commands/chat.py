"""The chat of ``kvik run``: turns at the terminal over one session."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

import click

from kvik.commands.answer import Answer, RunOptions, show_figures, stream, warn
from kvik.engine.conversation import Conversation, Spell
from kvik.errors import CapacityError

if TYPE_CHECKING:
    from kvik.engine.sampler import Sampling
    from kvik.engine.session import Session
    from kvik.models import Model

CHAT_HELP = "/exit leaves, /reset forgets, /help lists; Ctrl-C stops an answer, Ctrl-D leaves"
SPACE = "a message that starts with / needs a space before it"
# An endless chat needs a cache that stops growing; its positions are bounded by this.
ENDLESS = 1 << 20


def chat(model: Model, spell: Spell, options: RunOptions, sampling: Sampling) -> None:
    """Turns until /exit or the end of input; the history stays in the cache."""
    session = open_session(model, options)
    conversation = Conversation(session, model.tokenizer, spell, system=options.system)
    click.echo(f"{options.model} with {session.recipe}. {CHAT_HELP}.", err=True)
    for line in _lines():
        command = line.rstrip()
        if command == "/reset":
            conversation.reset()
        elif command == "/help":
            click.echo(CHAT_HELP, err=True)
        elif command.startswith("/"):
            name = command.split()[0]
            click.echo(f"kvik: {name} is no command: {CHAT_HELP}; {SPACE}", err=True)
        elif line.strip():
            turn(session, conversation, line, options, sampling)


def turn(
    session: Session, conversation: Conversation, line: str, options: RunOptions, sampling: Sampling
) -> None:
    """One question and its answer; Ctrl-C ends the answer, and what was said stays said."""
    ids = conversation.ask(line)
    answer = Answer(len(ids))
    try:
        with _interruptible() as pressed:
            for text in stream(session, ids, options, sampling, answer, pressed):
                click.echo(text, nl=False)
    except CapacityError as error:
        click.echo(f"kvik: {error}. /reset starts over.", err=True)
    ended = answer.tokens[:-1] if answer.finish == "eos" else answer.tokens
    conversation.answer(answer.text, ended)
    click.echo()
    show_figures(answer, session)


def open_session(model: Model, options: RunOptions) -> Session:
    """A session as long as the model's context, or endless where the cache stops growing."""
    from kvik.engine.session import Session
    from kvik.plan import kv_bytes
    from kvik.recipe import Recipe

    context = model.spec.context
    plan = Recipe.parse(options.recipe).resolve(model.spec)
    # Without a cache every turn costs the whole history: that one stays within the context.
    constant = kv_bytes(plan, 2 * context).total == kv_bytes(plan, 4 * context).total
    tokens = ENDLESS if constant and not plan.recompute else context
    return Session(model, options.recipe, max_tokens=max(tokens, options.max_new + 1))


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """A first Ctrl-C only sets a flag, so that no step is cut in two; a second one interrupts."""
    pressed = [False]

    def note(signum: int, frame: FrameType | None) -> None:
        if pressed[0]:
            raise KeyboardInterrupt
        pressed[0] = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed[0]
    finally:
        signal.signal(signal.SIGINT, before)


def _lines() -> Iterator[str]:
    """What the person types, line by line, until /exit or the end."""
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() its line editing
    while True:
        try:
            line = input("> ")
        except EOFError:
            click.echo()
            return
        except UnicodeDecodeError:
            warn("that line is not UTF-8 text; it was left out")
            continue
        if line.rstrip() == "/exit":
            return
        yield line
