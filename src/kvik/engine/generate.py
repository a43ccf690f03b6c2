"""The generation loop: feed the prompt, sample, show text as it becomes certain, feed, repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvik.engine.text import TextStream
from kvik.errors import KvikError

if TYPE_CHECKING:
    from kvik.engine.sampler import Sampling
    from kvik.engine.session import Session
    from kvik.models.tokenizer import Tokenizer

Finish = Literal["eos", "stop", "length", "cancelled"]
PREFILL_CHUNK = 512


@dataclass(frozen=True)
class Event:
    """One step: the sampled token, the text that is now certain, and why this is the last one.

    ``token`` is None where nothing was sampled (cancelled).
    """

    token: int | None
    text: str
    finish: Finish | None = None


def generate(
    session: Session,
    prompt_ids: Sequence[int],
    sampling: Sampling,
    *,
    max_new: int,
    stop: Sequence[str] = (),
    tokenizer: Tokenizer,
    continues: bool = False,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Feed ``prompt_ids`` after what ``session`` holds, then sample up to ``max_new`` tokens.

    The last event has ``finish``: an end token ("eos"), a stop string, the length, or
    ``cancelled()``, which is asked between steps and between parts of the prompt. The token
    sampled last is not in the session; every earlier one is. ``continues``: the text goes on from
    the prompt, so a space at its start is meant.
    """
    # Imported late: the types above are all that a reader of this module needs of torch.
    from kvik.engine.sampler import sample

    if not prompt_ids:
        raise KvikError("the prompt is empty: give some text to continue")
    if max_new < 1:
        raise KvikError(f"at least one new token must be asked for, not {max_new}")
    stream = TextStream(tokenizer, stop, continues=continues)
    fed = prompt_ids
    for count in range(1, max_new + 1):
        for start in range(0, len(fed), PREFILL_CHUNK):
            if cancelled():
                yield Event(None, stream.finish(), "cancelled")
                return
            logits = session.feed(fed[start : start + PREFILL_CHUNK])
        token = sample(
            logits[-1], sampling, history=session.tokens, sample=0, position=len(session.tokens)
        )
        finish: Finish | None = None
        text = ""
        if token in tokenizer.eos_ids:
            finish = "eos"
        else:
            text = stream.push(token)
            if stream.stopped:
                finish = "stop"
            elif count == max_new or len(session.tokens) == session.max_tokens:
                finish = "length"
        if finish in ("eos", "length"):
            text += stream.finish()
            finish = "stop" if stream.stopped else finish
        yield Event(token, text, finish)
        if finish:
            return
        fed = [token]
