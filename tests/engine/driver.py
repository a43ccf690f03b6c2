"""An engine in a pool that is too small, and what must hold after any operation on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from kvik.cache import State
from kvik.engine.beam import BeamParams
from kvik.engine.engine import Engine
from kvik.engine.job import Status
from kvik.engine.prefix_entry import Entry
from kvik.engine.request import Output, Request, Sample
from kvik.engine.sampler import Sampling
from kvik.engine.scheduler import Order
from kvik.errors import CapacityError
from kvik.models import Model

Key = tuple[tuple[int, ...], int, int, int, BeamParams | None]


class Driver:
    """Operations on an engine, and its invariants.

    ``answers`` holds what each sample of each request gives when it runs alone.
    """

    def __init__(
        self, model: Model, recipe: str, memory: int, *, swap: int, tokens: int, order: Order
    ) -> None:
        self.model, self.recipe = model, recipe
        self.engine = Engine(
            model,
            recipe,
            memory=memory,
            swap=swap,
            step_tokens=tokens,
            max_running=7,
            order=order,
            poison=True,
        )
        self.engine.cache.pool.buffer.fill_(0xFF)
        self.answers: dict[Key, Sample] = {}
        self.open: dict[int, tuple[Request, dict[int, Sample]]] = {}
        self.aborted: set[int] = set()
        self.refused = self.finished = 0

    def prompt(self, family: int, length: int) -> tuple[int, ...]:
        """Prompts of one family begin alike; those of one length of it are equal."""
        chance = np.random.default_rng(family)
        return tuple(chance.integers(0, self.model.spec.vocab, 200)[:length].tolist())

    def add(
        self,
        family: int,
        length: int,
        new: int,
        width: int,
        seed: int,
        priority: int,
        kind: int,
    ) -> None:
        """``kind`` says what is special: 0 nothing, 1 beams, 2 marks, 3 a tenant, 4 no sharing."""
        sampling = Sampling(temperature=1.0 if seed and kind != 1 else 0.0, seed=seed)
        request = Request(
            self.prompt(family, length),
            sampling,
            max_new=new,
            n=1 if kind == 1 else width,
            beams=BeamParams(width, n=width) if kind == 1 else None,
            eos_ids=frozenset({3, 50}) if seed == 1 else frozenset(),
            marks=(length // 2,) if kind == 2 else (),
            domain="other" if kind == 3 else "",
            share=kind != 4,
            logprobs=None if kind in (1, 4) else 0,
            priority=priority,
        )
        try:
            number = self.engine.add(request)
        except CapacityError:
            self.refused += 1
            return
        self.open[number] = (request, {})

    def step(self) -> None:
        for output in self.engine.step():
            self.take(output)

    def take(self, output: Output) -> None:
        request, samples = self.open[output.id]
        sample = samples.setdefault(output.sample, Sample())
        assert sample.finish is None, "news of a sample that had ended"
        sample.add(output)
        if output.finish is not None:
            self.judge(request, output.sample, sample, output.id in self.aborted)
        if output.last:
            del self.open[output.id]
            self.finished += 1

    def judge(self, request: Request, index: int, sample: Sample, aborted: bool) -> None:
        """An answer is what the request gives alone, or the beginning of that if it was aborted.

        Log-probabilities too: tiny models often choose the same token on another cache.
        """
        if sample.finish == "cancelled":
            assert aborted
            if request.beams:
                return
        want, count = self.alone(request, index), len(sample.tokens)
        assert sample.tokens == want.tokens[:count], request
        if request.logprobs is not None:
            assert sample.logprobs == pytest.approx(want.logprobs[:count], abs=2e-5), request
        if sample.finish != "cancelled":
            assert (sample.finish, count) == (want.finish, len(want.tokens)), request
            assert sample.score == pytest.approx(want.score, abs=1e-5)

    def alone(self, request: Request, index: int) -> Sample:
        beams = request.beams
        key = (request.prompt, request.max_new, request.sampling.seed, index, beams)
        if key not in self.answers:
            engine = Engine(self.model, self.recipe, memory=64 << 20, prefix_cache=False)
            own = replace(request, n=1, sample=0 if beams else index, domain="", marks=())
            own = replace(own, logprobs=None if beams else 0)
            found = engine.generate([own])[0].samples
            self.answers[key] = found[index if beams else 0]
        return self.answers[key]

    def pick(self, number: int) -> int | None:
        """One of the open requests."""
        return sorted(self.open)[number % len(self.open)] if self.open else None

    def abort(self, number: int) -> None:
        chosen = self.pick(number)
        if chosen is not None:
            self.aborted.add(chosen)
            self.engine.abort(chosen)

    def preempt(self, number: int) -> None:
        chosen = self.pick(number)
        if chosen is not None:
            self.engine.preempt(chosen)

    def evict(self, pages: int) -> None:
        """Asks the prefix cache for pages, as a request that needs them would."""
        demand = tuple(pages for _ in self.engine.cache.pool.page_bytes)
        if self.engine.prefixes is not None:
            could = self.engine.cache.pool.can_alloc(demand, evict=True)
            assert self.engine.prefixes.evict(demand) == could

    def check(self) -> None:
        """Bytes add up, and every page has exactly the owners that are known."""
        pool, stats = self.engine.cache.pool, self.engine.cache.pool.stats()
        assert stats.free + stats.used + stats.cached + stats.stranded == stats.total == pool.nbytes
        assert min(stats.free, stats.used, stats.cached, stats.stranded) >= 0
        owners: Counter[int] = Counter()
        sizes: dict[int, int] = {}
        used: set[int] = set()
        for job in [*self.engine.scheduler.running, *self.engine.scheduler.waiting]:
            for branch in job.branches:
                if branch.sequence is not None:
                    assert job.status is Status.RUNNING
                    self.count(branch.sequence.state, owners, sizes)
                    used.update(branch.sequence.state.pages().tolist())
        prefixes = self.engine.prefixes
        for entry in prefixes.entries() if prefixes is not None else ():
            self.count(entry, owners, sizes)
        ids = np.array(sorted(owners), dtype=np.int32)
        assert pool.references(ids).tolist() == [owners[page] for page in ids.tolist()]
        assert stats.used == sum(sizes[page] for page in used)
        assert stats.cached == sum(size for page, size in sizes.items() if page not in used)

    def count(self, held: State | Entry, owners: Counter[int], sizes: dict[int, int]) -> None:
        """Notes the pages of a sequence or of an entry of the prefix cache."""
        for group, main, tail in zip(
            self.engine.cache.resolved.groups, held.main, held.tail, strict=True
        ):
            for page, table in ((group.main, main), (group.tail, tail)):
                if page is not None and table is not None:
                    owners.update(table.pages.tolist())
                    sizes.update(dict.fromkeys(table.pages.tolist(), page.nbytes))

    def finish(self) -> None:
        """Everything ends, and the pool is whole."""
        for _ in range(5000):
            if not self.engine.busy:
                break
            self.step()
            self.check()
        assert not self.open
        assert not self.engine.busy
        stats = self.engine.stats()
        assert stats.pool.used == stats.swapped_bytes == 0
        if self.engine.prefixes is not None:
            self.engine.prefixes.clear()
        self.check()
        assert self.engine.cache.pool.stats().free == self.engine.cache.pool.nbytes
