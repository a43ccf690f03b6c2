"""What is asked of the engine, and what it answers."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kvik.engine.beam import BeamParams
from kvik.engine.sampler import Sampling
from kvik.errors import KvikError

if TYPE_CHECKING:
    from kvik.engine.sharing import Shared

Finish = Literal["eos", "stop", "length", "cancelled", "deadline", "error"]
LONGEST_DEADLINE = 1e9  # seconds


@dataclass(frozen=True)
class Request:
    """One prompt and what to do with it.

    ``n`` samples are drawn in parallel: sample i uses the draws of (seed, ``sample`` + i), so a
    request with n = 1 and that ``sample`` repeats it alone. ``beams`` searches instead of
    sampling. ``stop``: texts that end a sample; ``eos_ids``: tokens that do, None for the
    model's own. ``logprobs``: None, or how many alternatives to report beside each token.
    ``priority``: lower goes first, equals by arrival. ``deadline``: seconds from arrival.
    ``domain``: requests of different domains never share a prefix. ``marks``: positions of the
    prompt that recipes may act on; part of its identity. ``share``: whether to use and fill the
    prefix cache. KvikError for anything that makes no sense.
    """

    prompt: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    max_new: int = 128
    n: int = 1
    sample: int = 0
    beams: BeamParams | None = None
    stop: tuple[str, ...] = ()
    eos_ids: frozenset[int] | None = None
    logprobs: int | None = None
    priority: int = 0
    deadline: float | None = None
    domain: str = ""
    marks: tuple[int, ...] = ()
    share: bool = True

    def __post_init__(self) -> None:
        self._normalize()
        if not self.prompt:
            raise KvikError("the prompt is empty: give some text to continue")
        if min(self.prompt) < 0:
            raise KvikError(f"the prompt has the token id {min(self.prompt)}; ids are from 0 on")
        wanted: tuple[tuple[str, int, int], ...] = (
            ("max_new", 1, 2**31),
            ("n", 1, 2**31),
            ("sample", 0, 2**64 - self.n if type(self.n) is int else 0),
            ("priority", -(2**63), 2**63),
        )
        for name, low, high in wanted:
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise KvikError(f"{name} is {value!r}; it must be a whole number from {low} on")
        if any(not 0 <= mark <= len(self.prompt) for mark in self.marks):
            raise KvikError(f"marks are positions of the prompt, 0 to {len(self.prompt)}")
        self._check_options()

    def _normalize(self) -> None:
        """Lists, arrays and the like become tuples of plain numbers."""
        plain = type(self.prompt) is tuple and all([type(t) is int for t in self.prompt])
        if not plain:
            object.__setattr__(self, "prompt", _whole(self.prompt, "a prompt is token ids"))
        object.__setattr__(self, "marks", _whole(self.marks, "marks are positions"))
        if self.eos_ids is not None:
            ids = frozenset(_whole(self.eos_ids, "eos_ids are token ids"))
            object.__setattr__(self, "eos_ids", ids)
        stop: Any = self.stop
        if isinstance(stop, list):
            object.__setattr__(self, "stop", tuple(stop))

    def _check_options(self) -> None:
        if not isinstance(self.sampling, Sampling):
            raise KvikError(f"sampling is {self.sampling!r}; give Sampling(temperature=...)")
        if self.beams is not None:
            self._check_beams()
        if type(self.stop) is not tuple or not all(type(s) is str and s for s in self.stop):
            raise KvikError("stop is a list of texts, none of them empty")
        count = self.logprobs
        if count is not None and not (type(count) is int and 0 <= count < 2**31):
            raise KvikError("logprobs is the number of alternatives beside each token, 0 or more")
        end = self.deadline
        if end is not None and not (type(end) in (int, float) and 0 < end <= LONGEST_DEADLINE):
            raise KvikError("a deadline is a number of seconds from now, over 0 and at most 1e9")
        if end is not None:
            object.__setattr__(self, "deadline", float(end))
        if type(self.domain) is not str or not self.domain.isprintable():
            raise KvikError("a domain is a text of printable characters that names a tenant")
        if type(self.share) is not bool:
            raise KvikError(f"share is {self.share!r}; it must be True or False")

    def _check_beams(self) -> None:
        if not isinstance(self.beams, BeamParams):
            raise KvikError(f"beams is {self.beams!r}; give BeamParams(width)")
        if self.n > 1 or self.sampling.temperature > 0:
            raise KvikError("beam search takes no samples: leave n at 1 and the temperature at 0")
        if self.stop or self.logprobs is not None or self.sampling.repetition_penalty != 1:
            raise KvikError(
                "beam search takes the model's scores and ends at tokens: leave out stop, logprobs "
                "and the repetition penalty"
            )

    @property
    def width(self) -> int:
        """Sequences that run at once."""
        return self.n if self.beams is None else self.beams.width

    @property
    def most_tokens(self) -> int:
        """Most tokens that one of its sequences caches: the last one is never fed."""
        return len(self.prompt) + self.max_new - 1


def _whole(values: Iterable[Any], what: str) -> tuple[int, ...]:
    """Whole numbers of any kind (numpy's, one-element tensors) as plain ones."""
    if not isinstance(values, str | bytes):
        try:
            return tuple(map(operator.index, values))
        except TypeError:
            pass
    raise KvikError(f"{what}: a list of whole numbers, not {str(values)[:40]!r}")


class Output(NamedTuple):
    """News of one sample: new tokens, the text that is now certain, why it ended.

    Sampling gives one token at a time. A beam search gives each hypothesis at once, at its end,
    with its ``score``. ``logprob`` and ``top`` (token, log-probability) come when asked for.
    ``reason`` explains the finish "error". ``last``: nothing more comes of the request.
    """

    id: int
    sample: int
    tokens: tuple[int, ...] = ()
    text: str = ""
    finish: Finish | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    score: float | None = None
    reason: str = ""
    last: bool = False


@dataclass
class Sample:
    """One finished text of a request; fields as in :class:`Output`, gathered."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: Finish | None = None
    logprobs: list[float] = field(default_factory=list)
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    score: float | None = None
    reason: str = ""

    def add(self, output: Output) -> None:
        """Takes in what a step said about this sample."""
        self.tokens.extend(output.tokens)
        self.text += output.text
        self.finish = output.finish or self.finish
        self.reason = output.reason or self.reason
        self.score = output.score if output.score is not None else self.score
        if output.logprob is not None:
            self.logprobs.append(output.logprob)
            self.top.append(output.top)


@dataclass
class Completion:
    """All that came of a request.

    ``prompt_tokens`` were given, of which ``cached_tokens`` came from the prefix cache when it
    was first admitted. ``shared``: bytes that its samples or beams held together, and would have
    held apart, when the first of them ended; None for a single one.
    """

    id: int
    prompt_tokens: int
    cached_tokens: int = 0
    samples: list[Sample] = field(default_factory=list)
    shared: Shared | None = None

    @property
    def text(self) -> str:
        """The text of the first sample."""
        return self.samples[0].text if self.samples else ""
