"""Engine: many requests, one pool of KV memory, one batch a step."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import count
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from kvik.cache import KVCache, PagePool, choose_slab
from kvik.cache.pool import PoolStats
from kvik.engine.decoding import Decoding
from kvik.engine.identity import Identity, Text
from kvik.engine.job import Branch, Job, Status
from kvik.engine.memory import Memory
from kvik.engine.prefix import PrefixCache
from kvik.engine.prefix_disk import load_prefix, save_prefix
from kvik.engine.request import Completion, Output, Request, Sample
from kvik.engine.scheduler import Batch, Counts, Limits, Order, Scheduler
from kvik.engine.uninterrupted import uninterrupted
from kvik.errors import KvikError
from kvik.machine import available_memory, parse_bytes
from kvik.models import Model
from kvik.recipe import Recipe

SHARE_OF_MEMORY = 0.25
FIELDS = frozenset(field.name for field in fields(Request))


@dataclass(frozen=True)
class Stats:
    """What an engine did and holds.

    Tokens ``computed`` and ``generated`` so far; requests ``running`` and ``waiting`` now; what
    the scheduler counted; bytes of the pool, and in host memory.
    """

    steps: int
    computed: int
    generated: int
    running: int
    waiting: int
    counts: Counts
    pool: PoolStats
    swapped_bytes: int


class Engine:
    """Runs requests together through one model, one recipe and one pool.

    ``memory``: bytes of KV pool, as a number or as "512MiB"; a quarter of what is free if not
    given. ``step_tokens``: most tokens computed in a step. ``max_running``: most sequences at
    once. ``order``: admit by "arrival", or the longest stored "prefix" first. ``swap``: bytes of
    host memory for preempted requests; those that find no room there are computed again.
    ``prefix_cache``: whether prompts share what they have in common. ``poison``: overwrite freed
    pages, so that a read of one cannot go unnoticed.

    ``add`` and ``abort`` may be called from any thread, the rest from one at a time.
    """

    def __init__(
        self,
        model: Model,
        kv: Recipe | str = "fp16",
        *,
        memory: int | str | None = None,
        step_tokens: int = 512,
        max_running: int = 256,
        order: Order = "arrival",
        swap: int | str = 0,
        prefix_cache: bool = True,
        poison: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not isinstance(kv, str | Recipe):
            raise KvikError(f"{kv!r} is no recipe; write 'fp16', or 'int8+sinks:4+window:252'")
        self.model, self.recipe, self.clock = model, Recipe.parse(kv), clock
        plan = self.recipe.resolve(model.spec)
        size = int(available_memory() * SHARE_OF_MEMORY) if memory is None else _bytes(memory)
        slab = choose_slab(plan.page_bytes)
        if size < slab:
            raise KvikError(f"{size:,} bytes of KV memory hold no page; give at least {slab:,}")
        pool = PagePool(plan.page_bytes, size // slab * slab, slab_bytes=slab, poison=poison)
        self.cache = KVCache(plan, pool)
        self.prefixes: PrefixCache | None = None
        if prefix_cache and not plan.recompute:
            self.prefixes = PrefixCache(self.cache, model.identity)
        self._identity = (
            Identity.of(plan, b"", 1) if self.prefixes is None else self.prefixes.identity
        )
        self.memory = Memory(self.cache, self.prefixes, _bytes(swap))
        self.scheduler = Scheduler(self.memory, Limits(step_tokens, max_running, order))
        self._numbers = count()
        self._jobs: dict[int, Job] = {}
        self._deadlines: dict[int, float] = {}
        self._inbox: deque[Job | int] = deque()  # what other threads ask for during a step
        self._told: list[Output] = []  # what the next step returns before its own
        self._lock = Lock()
        self.decoding = Decoding(model, self.memory, self._close)
        self._steps = self._computed = 0

    # Requests

    def add(self, request: Request | Sequence[int] | str, **options: Any) -> int:
        """Queues a request, or a prompt with the fields of one; returns its id.

        CapacityError when it could never run in this engine's memory, even alone; KvikError for
        tokens that the model does not have.
        """
        return self._add(request, options).id

    def abort(self, number: int) -> None:
        """Ends a request at any moment; unknown and finished ones are left as they are.

        Its pages are free at once, or after the step that is under way. The next step's outputs
        tell of it.
        """
        if not isinstance(number, int):
            raise KvikError(f"{number!r} is no id; `add` gives them")
        with uninterrupted():
            self._inbox.append(number)
            self._drain_if_idle()

    def preempt(self, number: int) -> bool:
        """Takes the pages of a running request, which resumes when there is room again.

        Changes nothing of its answer. False when it is not running.
        """
        with uninterrupted(), self._lock:
            self._drain()
            job = self._jobs.get(number)
            if job is None or job.status is not Status.RUNNING:
                return False
            self.scheduler.preempt(job)
            return True

    @property
    def busy(self) -> bool:
        """Whether another step has anything to do or to tell."""
        return bool(self._jobs or self._inbox or self.decoding.news or self._told)

    def stats(self) -> Stats:
        """Where the engine stands."""
        return Stats(
            self._steps,
            self._computed,
            self.decoding.generated,
            len(self.scheduler.running),
            len(self.scheduler.waiting),
            replace(self.scheduler.counts),
            self.cache.pool.stats(),
            self.memory.swapped_bytes,
        )

    def step(self) -> list[Output]:
        """Computes one batch and says what came of it; nothing when there is nothing to do.

        When it raises (no memory, an interrupt) no request is lost: the next step goes on.
        """
        self._advance()
        # With no call before the return: a signal cannot come in between and lose it.
        told, self._told = self._told, []
        return told

    def _advance(self) -> None:
        """One step; adds what came of it to what is told."""
        with self._lock:
            try:
                with uninterrupted():
                    self._drain()
                    self._expire()
                    batch = self.scheduler.schedule()
                    self._plan(batch)
                if batch.decodes or batch.parts:
                    logits, ready = self._forward(batch)
                    with uninterrupted(), self._whole_or_restarted(batch):
                        self.cache.commit()
                        for branch, _ in batch.parts:
                            self._computed_part(branch)
                        self.decoding.advance(ready, logits)
            except BaseException:
                self.cache.abort()
                raise
            self._steps += 1
            with uninterrupted():  # under the lock: another thread's `abort` adds news too
                self._told += self.decoding.news
                self.decoding.news = []

    def generate(
        self,
        prompts: Sequence[Request | Sequence[int] | str],
        *,
        on_output: Callable[[Output], None] = lambda output: None,
        **options: Any,
    ) -> list[Completion]:
        """Runs prompts to their ends, together; completions come in the order of the prompts.

        ``options`` are fields of :class:`Request` for all of them. When one is refused, none runs.
        """
        jobs: dict[int, Job] = {}
        found: dict[int, Completion] = {}
        try:
            for prompt in prompts:
                with uninterrupted():
                    job = self._add(prompt, options)
                    jobs[job.id] = job
                    found[job.id] = Completion(job.id, len(job.request.prompt))
            going = set(jobs)
            while going:
                known = len(self._told)  # of other requests, for whoever steps next
                self._advance()
                with uninterrupted():
                    news = self._told[known:]
                    mine = [output for output in news if output.id in going]
                    self._told[known:] = [output for output in news if output.id not in going]
                for output in mine:
                    if output.last:
                        going.remove(output.id)
                    samples = found[output.id].samples
                    samples.extend(Sample() for _ in range(output.sample + 1 - len(samples)))
                    samples[output.sample].add(output)
                    on_output(output)
        except BaseException:
            with uninterrupted():
                for number in jobs:
                    self.abort(number)
            raise
        for number, job in jobs.items():
            found[number].cached_tokens, found[number].shared = job.hit_tokens or 0, job.shared
        return list(found.values())

    def _add(self, request: Request | Sequence[int] | str, options: dict[str, Any]) -> Job:
        if isinstance(request, str):
            request = self.model.tokenizer.encode(request)
        if "prompt" in options:
            raise KvikError("the prompt comes first, and only there: leave out `prompt=`")
        if unknown := sorted(options.keys() - FIELDS):
            raise KvikError(f"a request has no {unknown[0]}; it has {', '.join(sorted(FIELDS))}")
        if not isinstance(request, Request):
            request = Request(request, **options)  # type: ignore[arg-type]
        elif options:
            request = replace(request, **options)
        vocab = self.model.spec.vocab
        if max(request.prompt) >= vocab:
            raise KvikError(
                f"the prompt has the token id {max(request.prompt)}, outside the vocabulary of "
                f"{vocab}; was it encoded with another model's tokenizer?"
            )
        if request.stop and self.model.path is None:
            raise KvikError("a model without a tokenizer cannot stop at a text; use eos_ids")
        self.scheduler.check(request)
        if request.eos_ids is None:
            request = replace(request, eos_ids=self.model.eos_ids)
        job = Job(request, next(self._numbers), self.clock())
        text = Text(self._identity, request.prompt, request.marks, request.domain)
        width = 1 if request.beams else request.n
        texts = [text, *(text.fork() for _ in range(width - 1))]
        job.branches = [
            Branch(job, i, t, self.decoding.stream(request)) for i, t in enumerate(texts)
        ]
        with uninterrupted():
            self._inbox.append(job)
            self._drain_if_idle()
        return job

    def _drain_if_idle(self) -> None:
        """Call it where nothing interrupts: between these lines the lock would stay taken."""
        if self._lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._lock.release()

    def _drain(self) -> None:
        """Takes in what was asked since the last step."""
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, Job):
                self.scheduler.add(item)
                self._jobs[item.id] = item
                if item.request.deadline is not None:
                    self._deadlines[item.id] = item.arrival + item.request.deadline
            elif item in self._jobs:
                self.decoding.end(self._jobs[item], "cancelled")

    def _expire(self) -> None:
        now = self.clock() if self._deadlines else 0.0
        for number, end in list(self._deadlines.items()):
            if now >= end:
                self.decoding.end(self._jobs[number], "deadline")

    # Prefixes on disk

    def save_prefix(
        self,
        path: str | os.PathLike[str],
        prompt: Sequence[int] | str,
        *,
        marks: Sequence[int] = (),
        domain: str = "",
    ) -> int:
        """Writes what is stored of the beginning of a prompt to a file; returns its tokens.

        KvikError when nothing is, or when the disk refuses; the file is whole or not there.
        """
        ids = self.model.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        with self._lock:
            with uninterrupted():
                self._drain()
            text = self._prefixes.text(ids, marks, domain)
            return save_prefix(path, self._prefixes, text, self.model.identity)

    def load_prefix(self, path: str | os.PathLike[str], *, domain: str | None = None) -> int:
        """Puts a saved prefix into the prefix cache; returns its tokens.

        Prompts that begin with it compute only what follows. A damaged or foreign file is refused
        with KvikError, one that finds no room with CapacityError; the engine is unchanged then.
        """
        with self._lock:
            with uninterrupted():
                self._drain()
            return load_prefix(path, self._prefixes, self.model.identity, domain)

    @property
    def _prefixes(self) -> PrefixCache:
        if self.prefixes is None:
            raise KvikError(
                "this engine has no prefix cache: it was started without, or keeps none"
            )
        return self.prefixes

    # A step

    def _plan(self, batch: Batch) -> None:
        decodes, parts = batch
        sequences = [b.sequence for b in decodes] + [work.branch.sequence for work in parts]
        held = [sequence for sequence in sequences if sequence is not None]
        if held:
            self.cache.plan(held, [1] * len(decodes) + [work.tokens for work in parts])
        elif self.scheduler.running:
            stuck = min(self.scheduler.running, key=lambda job: job.id)
            self.decoding.end(stuck, "error", "its pages do not fit, though that was checked")

    def _forward(self, batch: Batch) -> tuple[Tensor, list[Branch]]:
        """Runs the model; logits [R, vocab] of the R branches whose known tokens end with it."""
        decodes, parts = batch
        tokens = [b.text.ids[-1] for b in decodes]
        ready, rows = list(decodes), list(range(len(decodes)))
        for branch, new in parts:
            start = branch.computed
            tokens += branch.text.ids[start : start + new]
            if start + new == branch.known:
                ready.append(branch)
                rows.append(len(tokens) - 1)
        every = len(rows) == len(tokens)
        wanted = None if every else torch.tensor(rows, dtype=torch.int64)
        logits = self.model.forward(tokens, self.cache.at, self.cache, wanted)
        self._computed += len(tokens)
        return logits, ready

    @contextmanager
    def _whole_or_restarted(self, batch: Batch) -> Iterator[None]:
        """A step that breaks off once its K and V are stored has lost its logits."""
        try:
            yield
        except BaseException:
            branches = batch.decodes + [work.branch for work in batch.parts]
            for job in dict.fromkeys(branch.job for branch in branches):
                if job.status is Status.RUNNING:
                    self.scheduler.restart(job)
            raise

    def _computed_part(self, branch: Branch) -> None:
        """Snapshots, and the forks at the end of a prompt."""
        job = branch.job
        if not self.memory.whole:
            self.scheduler.computed(branch)
            if branch.computed < len(job.request.prompt):
                return
        if not job.forked:
            assert branch.sequence is not None
            for other in job.live:
                if other is not branch:
                    other.sequence = self.cache.fork(branch.sequence)
            job.forked = True

    def _close(self, job: Job) -> None:
        self.scheduler.remove(job)
        del self._jobs[job.id]
        self._deadlines.pop(job.id, None)


def _bytes(size: int | str) -> int:
    if isinstance(size, str):
        return parse_bytes(size)
    if type(size) is not int or size < 0:
        raise KvikError(f"{size!r} is no number of bytes; write 67108864 or '64MiB'")
    return size
