"""A request inside the engine: its growing sequences and where it stands."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from kvik.engine.request import Finish, Request

if TYPE_CHECKING:
    from torch import Tensor

    from kvik.cache import Sequence
    from kvik.cache.swap import Swapped
    from kvik.engine.beam import BeamSearch
    from kvik.engine.identity import Text
    from kvik.engine.sharing import Shared
    from kvik.engine.text import TextStream


class Status(Enum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    FINISHED = "finished"


class Branch:
    """One growing sequence of a request. ``sequence`` is None while it holds no pages."""

    __slots__ = ("finish", "index", "job", "passed", "row", "sequence", "stream", "text")

    def __init__(self, job: Job, index: int, text: Text, stream: TextStream | None) -> None:
        self.job, self.index, self.text, self.stream = job, index, text, stream
        self.sequence: Sequence | None = None
        self.finish: Finish | None = None
        self.passed = 0  # steps that had no room for it since it was last computed
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
        self.plain = request.logprobs is None
        self.single = request.n == 1 and request.beams is None
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
    def lead(self) -> Branch:
        """The one that computes the prompt for its siblings.

        That is one without a token of its own, if any is: then it needs the logits after the
        prompt, and gives them to the others like it.
        """
        live, prompt = self.live, len(self.request.prompt)
        return next((b for b in live if b.known == prompt), live[0])

    @property
    def width(self) -> int:
        """Sequences that it runs, or soon will."""
        return len(self.live) if self.request.beams is None else self.request.width

    def target(self, branch: Branch) -> int:
        """How far a branch may be computed now: siblings fork off at the end of the prompt."""
        return len(branch.text.ids) if self.forked else len(self.request.prompt)
