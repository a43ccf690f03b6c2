"""One answer of ``kvik run``: streamed, timed, told in one line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from kvik.machine import human_bytes

if TYPE_CHECKING:
    from kvik.engine.sampler import Sampling
    from kvik.engine.session import Session


@dataclass(frozen=True)
class RunOptions:
    """The command line of ``kvik run``."""

    model: str
    prompt: str | None
    recipe: str
    file: str | None
    system: str | None
    raw: bool
    max_new: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int
    stop: tuple[str, ...]
    as_json: bool


@dataclass
class Answer:
    """What came out of one turn, and how fast."""

    prompt_tokens: int
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = "length"
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    def facts(self, session: Session) -> dict[str, Any]:
        """The figures as JSON has them; rates are None where nothing was timed."""
        steps = len(self.tokens) - 1
        return {
            "text": self.text,
            "finish": self.finish,
            "prompt_tokens": self.prompt_tokens,
            "new_tokens": len(self.tokens),
            "cached_tokens": len(session.tokens),
            "kv_bytes": session.kv_bytes,
            "prefill_tok_s": _rate(self.prompt_tokens, self.prefill_seconds),
            "decode_tok_s": _rate(steps, self.decode_seconds),
        }


def stream(
    session: Session,
    ids: list[int],
    options: RunOptions,
    sampling: Sampling,
    answer: Answer,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[str]:
    """Texts as they come; ``answer`` is kept up to date all the while."""
    from kvik.engine.generate import generate

    events = generate(
        session,
        ids,
        sampling,
        max_new=options.max_new,
        stop=options.stop,
        tokenizer=session.model.tokenizer,
        continues=options.raw,
        cancelled=cancelled,
    )
    start = time.perf_counter()
    first = 0.0
    for event in events:
        now = time.perf_counter()
        if event.token is not None:
            first = first or now
            answer.tokens.append(event.token)
            answer.prefill_seconds, answer.decode_seconds = first - start, now - first
        answer.text += event.text
        answer.finish = event.finish or answer.finish
        if event.text:
            yield event.text


def show_figures(answer: Answer, session: Session) -> None:
    """One line on standard error."""
    facts = answer.facts(session)
    speeds = [
        f"{name} {facts[key]:.1f} tok/s"
        for name, key in (("prefill", "prefill_tok_s"), ("decode", "decode_tok_s"))
        if facts[key] is not None
    ]
    parts = [
        f"{answer.prompt_tokens:,} prompt + {len(answer.tokens):,} new tokens",
        f"KV {human_bytes(facts['kv_bytes'])} for {facts['cached_tokens']:,} tokens "
        f"({session.recipe})",
        *speeds,
    ]
    sys.stdout.flush()
    click.echo(f"[{'; '.join(parts)}]", err=True)


def _rate(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def warn(message: str) -> None:
    """One line on standard error; work goes on."""
    click.echo(f"kvik: warning: {message}", err=True)
