"""Which tokens are computed in the next step. No tensors here: requests, pages and their order.

A step has a budget of tokens. Sequences that wait for one token (decodes) come first, then prompts
in the order of service, cut to what is left (Sarathi-Serve, arXiv 2403.02310). Requests run and
are admitted by priority, then arrival; one is admitted when the pages of all its known tokens are
there, and beside them a page for everyone who runs. When pages run out the last one in that order
is preempted. The oldest request never is, so it always ends, and everyone becomes the oldest. Who
was passed over for too long goes first, waiting or running.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from kvik.engine.job import Branch, Job, Status
from kvik.engine.request import Request
from kvik.engine.underway import Underway
from kvik.errors import CapacityError, KvikError

if TYPE_CHECKING:
    from kvik.engine.memory import Demand, Memory
    from kvik.engine.prefix import Hit

Order = Literal["arrival", "prefix"]
LOOKAHEAD = 64  # waiting requests that longest-prefix-first compares
# Times that later requests may overtake a waiting one, by priority or by prefix, and steps that
# may have no tokens left for a running one.
PATIENCE = 64


@dataclass(frozen=True)
class Limits:
    """Bounds of a step: ``tokens`` computed, ``running`` sequences; and the order of admission."""

    tokens: int = 512
    running: int = 256
    order: Order = "arrival"

    def __post_init__(self) -> None:
        for name, value in (("tokens", self.tokens), ("sequences", self.running)):
            if type(value) is not int or value < 1:
                raise KvikError(f"a step takes a whole number of {name} from 1 on, not {value!r}")
        if self.order not in ("arrival", "prefix"):
            raise KvikError(f"the order is 'arrival' or 'prefix', not {self.order!r}")


class Work(NamedTuple):
    """The next known ``tokens`` of a branch: how many."""

    branch: Branch
    tokens: int


class Batch(NamedTuple):
    """The work of a step: branches that wait for one token, and parts of prompts."""

    decodes: list[Branch]
    parts: list[Work]


@dataclass
class Counts:
    """What the scheduler has done so far."""

    swapped: int = 0
    recomputed: int = 0
    compacted: int = 0
    reused: int = 0  # tokens that came from the prefix cache


class Scheduler:
    """Waiting and running jobs, and the work of each step."""

    def __init__(self, memory: Memory, limits: Limits) -> None:
        self.memory, self.limits = memory, limits
        self.waiting: list[Job] = []  # both in the order of service
        self.running: list[Job] = []
        self.counts = Counts()
        self.underway = Underway(memory)
        self._decodes: list[Branch] = []
        self._parts: list[Work] = []
        self._need: Demand = memory.nothing
        self._budget = 0

    def check(self, request: Request) -> None:
        """CapacityError when a request could never run, even alone."""
        if request.width > self.limits.running:
            raise CapacityError(
                f"{request.width} sequences at once were asked of an engine that runs "
                f"{self.limits.running}; ask for fewer or raise its limit"
            )
        lengths = [request.most_tokens] * request.width
        if not self.memory.could_hold(self.memory.peak_of_group(len(request.prompt), lengths)):
            times = f"{request.width} x " if request.width > 1 else ""
            raise CapacityError(
                f"{times}{request.most_tokens:,} tokens do not fit in the engine's "
                f"{self.memory.pool.nbytes:,} bytes of KV memory, even alone; ask for fewer, use a "
                "smaller recipe or give more memory"
            )

    def add(self, job: Job) -> None:
        """Queues a job whose request was checked."""
        self._requeue(job, Status.WAITING)

    def remove(self, job: Job) -> None:
        """Ends a job at any moment between steps; its pages are free at once."""
        (self.running if job.status is Status.RUNNING else self.waiting).remove(job)
        self.underway.settle(job)
        self.memory.drop_swapped(job)
        for branch in job.branches:
            self.memory.release(branch)
        job.status = Status.FINISHED

    def restart(self, job: Job) -> None:
        """Sends a running job back to be computed again, after a step that broke off."""
        self.running.remove(job)
        self.underway.settle(job)
        for branch in job.branches:
            self.memory.release(branch)
        self._requeue(job, Status.WAITING)

    def preempt(self, job: Job) -> None:
        """Takes the pages of a running job and queues it again, to be resumed where it was."""
        self.running.remove(job)
        self.underway.settle(job)
        if self.memory.park(job):
            self._requeue(job, Status.SWAPPED)
            self.counts.swapped += 1
        else:
            self._requeue(job, Status.WAITING)
            self.counts.recomputed += 1

    def computed(self, branch: Branch) -> None:
        """Takes note of how far a prompt has been computed: that may be worth a snapshot."""
        job, end, block = branch.job, branch.computed, self.memory.block
        done = end == job.target(branch)
        if block and (done or end % block == 0 or end in job.stops):
            self.memory.remember(branch)
        if done:
            self.underway.settle(job)

    def schedule(self) -> Batch:
        """The work of the next step. Pages for all of it are there."""
        self._decodes, self._parts = [], []
        self._need, self._budget = self.memory.nothing, self.limits.tokens
        before = self.counts.swapped + self.counts.recomputed
        decodes, parts = self._runnable()
        quiet = not (parts or self.waiting) and len(decodes) <= self._budget
        if quiet and self.memory.ample(len(decodes)):  # the common case needs no exact count
            return Batch(decodes, [])
        runnable = decodes + parts
        late = [branch for branch in runnable if branch.passed >= PATIENCE]
        if late:  # before all others, as if it were the only one
            parts = late + [branch for branch in runnable if branch.passed < PATIENCE]
            decodes = []
        together = self.memory.demand_of_decodes(decodes)
        if len(decodes) <= self._budget and self.memory.make_room(together):
            self._decodes, self._need = decodes, together
            self._budget -= len(decodes)
        else:
            parts = decodes + parts
        for branch in parts:
            self._continue(branch)
        if self.waiting and before == self.counts.swapped + self.counts.recomputed:
            self._admit()
        self._count_passed(runnable)
        return Batch(self._decodes, self._parts)

    def _count_passed(self, runnable: list[Branch]) -> None:
        """Takes note of who found no room in the step."""
        for branch in runnable:
            branch.passed += 1
        for branch in self._decodes:
            branch.passed = 0
        for work in self._parts:
            work.branch.passed = 0

    # Running jobs

    def _runnable(self) -> tuple[list[Branch], list[Branch]]:
        """Branches that wait for one token, and for more, in the order of service."""
        decodes: list[Branch] = []
        parts: list[Branch] = []
        for job in self.running:
            prompt, forked = len(job.request.prompt), job.forked
            for branch in job.branches:
                # Without a sequence it has ended, or forks off at the end of the prompt; with a
                # row of logits it waits for its siblings.
                if branch.sequence is not None and branch.row is None:
                    target = len(branch.text.ids) if forked else prompt
                    left = target - branch.sequence.state.length
                    if left == 1 and target > prompt:
                        decodes.append(branch)
                    elif left:
                        parts.append(branch)
        return decodes, parts

    def _continue(self, branch: Branch, *, preempt: bool = True) -> None:
        """Takes the next known tokens of a branch into the step, as many as fit."""
        count, compacted = self._chunk(branch), False
        while count and branch.sequence is not None:  # not preempted meanwhile
            need = self.memory.add(self._need, self.memory.demand(branch, count))
            if self.memory.make_room(need):
                self._parts.append(Work(branch, count))
                self._need = need
                self._budget -= count
                return
            if count > 1 and not self.memory.whole:
                count //= 2
            elif not preempt or (compacted and len(self.running) == 1):
                return
            elif not self._preempt_last():
                self.memory.compact(branch.job)
                self.counts.compacted += 1
                self._recount()
                if not self.memory.make_room(self._need):  # what was promised before
                    self._decodes, self._parts = [], []
                    self._recount()
                compacted = True

    def _chunk(self, branch: Branch) -> int:
        """How many tokens of a branch the step should take: to a place worth a snapshot."""
        job = branch.job
        start, target = branch.computed, job.target(branch)
        if self.memory.whole:  # nothing is stored, so a text cannot be cut
            first = not (self._decodes or self._parts)
            return target if target <= self._budget or first else 0
        stop = min([target, start + self._budget, *(s for s in job.stops if s > start)])
        block = self.memory.block
        if stop - start <= 1 or not (block and job.request.share):
            return stop - start
        # The same text again has to compute its last token, so it starts from before that.
        last = (branch.known - 1) // block * block
        if start < last < stop and not self.memory.cuttable:
            return last - start
        even = stop // block * block
        whole = stop == target or stop in job.stops or even <= start
        return stop - start if whole else even - start

    def _preempt_last(self) -> bool:
        """Takes the pages of the last running job that is not the oldest; False if none is."""
        oldest = min(self.running, key=lambda j: j.id)
        victims = [j for j in self.running if j is not oldest]
        if not victims:
            return False
        victim = victims[-1]
        self.preempt(victim)
        self._decodes = [b for b in self._decodes if b.job is not victim]
        self._parts = [w for w in self._parts if w.branch.job is not victim]
        self._recount()
        return True

    def _recount(self) -> None:
        """What the step needs, after pages have changed hands."""
        self._budget = self.limits.tokens - len(self._decodes)
        self._need = self.memory.demand_of_decodes(self._decodes)
        for branch, count in self._parts:
            self._budget -= count
            self._need = self.memory.add(self._need, self.memory.demand(branch, count))

    # Waiting jobs

    def _requeue(self, job: Job, status: Status) -> None:
        """Puts a job back in its place in the queue; without pages its samples fork anew."""
        job.status = status
        if status is Status.WAITING:
            job.forked = len(job.live) == 1
            for branch in job.live:
                branch.row = None
        insort(self.waiting, job, key=lambda j: j.key)

    def _admit(self) -> None:
        running = sum(job.width for job in self.running)
        for job, hit in self._candidates():
            if self._budget <= 0 or running + job.width > self.limits.running:
                return
            if self.underway.awaits(job, hit):
                continue
            if not self._start(job, hit, running):
                return
            running += job.width
            for other in self.waiting:
                if other.id < job.id:
                    other.overtaken += 1

    def _candidates(self) -> Iterator[tuple[Job, Hit | None]]:
        """The first waiting jobs in the order of admission, with what is stored of each.

        Those that were overtaken too often come first.
        """
        ready = (job for job in self.waiting if not self.underway.still_awaits(job))
        jobs = list(islice(ready, LOOKAHEAD))
        late = [job for job in self.waiting if job.overtaken >= PATIENCE]
        if late:
            late.sort(key=lambda job: job.id)
            jobs = late + [job for job in jobs if job not in late]
        if self.limits.order == "arrival" or late or len(jobs) < 2:
            yield from ((job, self._hit(job)) for job in jobs)
            return
        jobs = [job for job in jobs if job.request.priority == jobs[0].request.priority]
        found = [(job, self._hit(job)) for job in jobs]
        # Python's sort is stable: equals stay in their order.
        found.sort(key=lambda f: -f[1].length if f[1] else 0)
        yield from found

    def _hit(self, job: Job) -> Hit | None:
        if job.status is Status.SWAPPED or not job.request.share:
            return None
        return self.memory.match(job.lead)

    def _start(self, job: Job, hit: Hit | None, running: int) -> bool:
        """Lets a job run if there is room for all that is known of it; whether it does now."""
        memory, lead = self.memory, job.lead
        # Alone it needs no more room than for its next token: `add` saw to it that it ends.
        reserve = memory.add(self._need, memory.reserve(running))
        if job.swapped is not None:
            if not memory.make_room(memory.add(reserve, job.swapped.demand)):
                return False
            memory.unpark(job)
        else:
            memory.start(lead, hit)
            demand = memory.add(reserve, memory.demand_of_group(job))
            if running and not memory.make_room(demand):
                memory.release(lead)
                return False
            memory.note(hit)
            self.counts.reused += lead.computed
            if job.hit_tokens is None:
                job.hit_tokens = lead.computed
            self.underway.announce(job)
        self.waiting.remove(job)
        insort(self.running, job, key=lambda j: j.key)
        job.status = Status.RUNNING
        for branch in job.live:
            if branch.sequence is not None and branch.computed < job.target(branch):
                self._continue(branch, preempt=not running)
        return True
