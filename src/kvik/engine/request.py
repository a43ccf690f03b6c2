"""What is asked of the engine, what it answers, and a request's state in between."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal, NamedTuple

from kvik.engine.sampler import Sampling
from kvik.errors import KvikError

if TYPE_CHECKING:
    from torch import Tensor

    from kvik.cache import Sequence
    from kvik.cache.swap import Swapped
    from kvik.engine.beam import BeamParams, BeamSearch
    from kvik.engine.identity import Text
    from kvik.engine.sharing import Shared
    from kvik.engine.text import TextStream

Finish = Literal["eos", "stop", "length", "cancelled", "deadline", "error"]


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
    prefix cache.
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
        if not self.prompt:
            raise KvikError("the prompt is empty: give some text to continue")
        if not all(type(t) is int and t >= 0 for t in self.prompt):
            raise KvikError("a prompt is token ids: whole numbers from the tokenizer")
        for name, low in (("max_new", 1), ("n", 1), ("sample", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < low:
                raise KvikError(f"{name} is {value!r}; it must be a whole number from {low} on")
        if self.beams is not None and (self.n > 1 or self.sampling.temperature > 0):
            raise KvikError("beam search takes no samples: leave n at 1 and the temperature at 0")
        if self.beams is not None and (
            self.stop or self.logprobs is not None or self.sampling.repetition_penalty != 1
        ):
            raise KvikError(
                "beam search takes the model's scores and ends at tokens: leave out stop, logprobs "
                "and the repetition penalty"
            )
        if self.logprobs is not None and not (type(self.logprobs) is int and self.logprobs >= 0):
            raise KvikError("logprobs is the number of alternatives beside each token, 0 or more")
        if self.deadline is not None and not self.deadline > 0:
            raise KvikError("a deadline is a number of seconds from now, over 0")
        if any(type(m) is not int or not 0 <= m <= len(self.prompt) for m in self.marks):
            raise KvikError(f"marks are positions of the prompt, 0 to {len(self.prompt)}")

    @property
    def width(self) -> int:
        """Sequences that run at once."""
        return self.n if self.beams is None else self.beams.width

    @property
    def most_tokens(self) -> int:
        """Most tokens that one of its sequences caches: the last one is never fed."""
        return len(self.prompt) + self.max_new - 1


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


class Status(Enum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


class Branch:
    """One growing sequence of a request. ``sequence`` is None while it holds no pages."""

    __slots__ = ("finish", "index", "job", "row", "sequence", "stream", "text")

    def __init__(self, job: Job, index: int, text: Text, stream: TextStream | None) -> None:
        self.job, self.index, self.text, self.stream = job, index, text, stream
        self.sequence: Sequence | None = None
        self.finish: Finish | None = None
        self.row: Tensor | None = None  # logits that wait for those of its siblings

    @property
    def known(self) -> int:
        """Tokens known so far: the prompt and what was generated."""
        return len(self.text.ids)

    @property
    def computed(self) -> int:
        """Tokens whose K and V were computed."""
        return 0 if self.sequence is None else self.sequence.length


class Job:
    """A request inside the engine."""

    def __init__(self, request: Request, number: int, arrival: float) -> None:
        self.request, self.id, self.arrival = request, number, arrival
        self.eos_ids = request.eos_ids or frozenset()
        self.longest = len(request.prompt) + request.max_new
        # What most requests are, so that a step can pass over them quickly.
        self.single = request.width == 1
        self.greedy = request.sampling.temperature == 0 and request.sampling.repetition_penalty == 1
        self.status = Status.WAITING
        self.branches: list[Branch] = []
        self.forked = True  # False until the others fork off the first one, after the prompt
        self.search: BeamSearch | None = None
        self.swapped: Swapped | None = None
        self.parked: list[Branch] = []  # whose sequences ``swapped`` holds, in its order
        self.stops: set[int] = set()  # lengths that others want a snapshot of
        self.awaits: tuple[Job, int] | None = None  # who computes how much of its prompt
        self.announced = False  # whether others can wait for its prompt
        self.overtaken = 0
        self.hit_tokens: int | None = None
        self.shared: Shared | None = None

    @property
    def key(self) -> tuple[int, int]:
        """Order of service."""
        return self.request.priority, self.id

    @property
    def live(self) -> list[Branch]:
        """Branches that still grow."""
        return [b for b in self.branches if b.finish is None]

    @property
    def width(self) -> int:
        """Sequences that it runs, or soon will."""
        return len(self.live) if self.request.beams is None else self.request.width

    def target(self, branch: Branch) -> int:
        """How far a branch may be computed now: siblings fork off at the end of the prompt."""
        return len(branch.text.ids) if self.forked else len(self.request.prompt)
