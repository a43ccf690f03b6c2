"""check_engine: the position law from request to answer, on one stack and one tiny model.

However an engine cuts, batches, interrupts and shares the work, a request gets the same tokens and
log-probabilities. The model computes in float64, so that only logic can differ.
"""

from __future__ import annotations

import random
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvik.engine.engine import Engine
from kvik.engine.request import Request, Sample
from kvik.engine.sampler import Sampling
from kvik.models import Model
from kvik.testing.error import ConformanceError

PROMPT, NEW = 75, 7
TOLERANCE = 2e-5
CHUNKS = (1, 7, 64)
LONG, LONG_CHUNKS = 1100, (1000, 257)
GREEDY, SEEDED = Sampling(), Sampling(temperature=1.0, seed=11)
MakeEngine = Callable[..., Engine]


def check_engine(
    recipe: str, model: Model, make: MakeEngine = Engine, *, thorough: bool = True
) -> None:
    """Raises ConformanceError where the way a request was served changes its answer.

    ``make`` builds the engine: a broken one serves as a negative control. Each way is taken with
    greedy and with seeded sampling if ``thorough``, else with one of them, which depends on the
    recipe.
    """
    chance = random.Random(3)
    prompt = tuple(chance.randrange(model.spec.vocab) for _ in range(PROMPT))
    run = _Run(recipe, model, make, prompt, thorough)
    ways = (
        (run.check_chunks, run.check_prefix),
        (
            run.check_strangers,
            run.check_preempted,
            run.check_restored,
        ),
    )
    turn = 1 if zlib.crc32(recipe.encode()) % 2 else -1
    for sampling, own in zip((GREEDY, SEEDED), ways[::turn], strict=True):
        request = Request(prompt, sampling, max_new=NEW, logprobs=0)
        engine = run.engine(step_tokens=1000, prefix_cache=False)
        want = engine.generate([request])[0].samples
        run.finish(engine, "alone")
        for check in (*ways[0], *ways[1]) if thorough else own:
            check(request, want)
    run.check_samples()


def check_long_prompt(recipe: str, model: Model, make: MakeEngine = Engine) -> None:
    """The same for a prompt that steps of 1,000 tokens really cut in two."""
    chance = random.Random(4)
    prompt = tuple(chance.randrange(model.spec.vocab) for _ in range(LONG))
    run, request = _Run(recipe, model, make, prompt, False), Request(prompt, max_new=3, logprobs=0)
    engine = run.engine(step_tokens=2 * LONG, prefix_cache=False)
    want = engine.generate([request])[0].samples
    run.check_chunks(request, want, LONG_CHUNKS)


@dataclass
class _Run:
    recipe: str
    model: Model
    make: MakeEngine
    prompt: tuple[int, ...]
    thorough: bool

    def engine(self, **options: Any) -> Engine:
        """An engine with room for some requests, in which freed pages are poisoned."""
        engine = self.make(
            self.model,
            self.recipe,
            memory=8 << 20,
            **{"poison": True, "step_tokens": 32, **options},
        )
        engine.cache.pool.buffer.fill_(0xFF)
        return engine

    def compare(self, what: str, got: list[Sample], want: list[Sample]) -> None:
        """The same tokens, and log-probabilities within the tolerance."""
        for a, b in zip(got, want, strict=True):
            if a.tokens != b.tokens or a.finish != b.finish:
                raise ConformanceError(f"{self.recipe}: {what}: {a.tokens}, alone {b.tokens}")
            worst = max(abs(x - y) for x, y in zip(a.logprobs, b.logprobs, strict=True))
            if not worst <= TOLERANCE:
                raise ConformanceError(f"{self.recipe}: {what}: log-probabilities off {worst:.1e}")

    def finish(self, engine: Engine, what: str) -> None:
        """Nothing is held but what the prefix cache keeps, and that can be given up."""
        stats = engine.stats()
        if stats.pool.used or stats.swapped_bytes or engine.busy:
            raise ConformanceError(f"{self.recipe}: {what}: {stats} after the last request")
        if engine.prefixes is not None:
            engine.prefixes.clear()
        if engine.stats().pool.free != engine.cache.pool.nbytes:
            raise ConformanceError(f"{self.recipe}: {what}: the pool is not whole again")

    def strangers(self, count: int) -> list[Request]:
        """Other prompts; some begin as ours does."""
        chance = random.Random(8)
        found = []
        for index in range(count):
            own = tuple(chance.randrange(self.model.spec.vocab) for _ in range(20 + 13 * index))
            start = self.prompt[: 17 * index] if index % 2 else ()
            found.append(Request(start + own, SEEDED, max_new=4 + 3 * index))
        return found

    def check_chunks(
        self, request: Request, want: list[Sample], sizes: tuple[int, ...] = CHUNKS
    ) -> None:
        """The prompt in pieces."""
        for size in sizes:
            engine = self.engine(step_tokens=size)
            self.compare(f"chunks of {size}", engine.generate([request])[0].samples, want)
            self.finish(engine, f"chunks of {size}")

    def check_strangers(self, request: Request, want: list[Sample]) -> None:
        """Batched with others that come and go."""
        engine, others = self.engine(), self.strangers(4)
        for other in others[:2]:
            engine.add(other)
        engine.step()
        engine.add(others[2])
        mine = engine.add(request)
        self.compare("batched with strangers", _drive(engine, mine, {2: others[3]}), want)
        self.finish(engine, "batched with strangers")

    def check_preempted(self, request: Request, want: list[Sample]) -> None:
        """Preempted within the prompt and within the answer, and resumed both ways."""
        for swap in (0, 8 << 20):
            engine = self.engine(swap=swap, step_tokens=16)
            what = "swapped" if swap else "recomputed"
            engine.add(self.strangers(2)[1])
            mine = engine.add(request)
            got = _drive(engine, mine, preempt=(2, 4, 8))
            counts = engine.stats().counts
            if (counts.swapped if swap else counts.recomputed) < 3:
                raise ConformanceError(f"{self.recipe}: {what}: it was never preempted: {counts}")
            self.compare(f"{what} after a preemption", got, want)
            self.finish(engine, what)

    def check_prefix(self, request: Request, want: list[Sample]) -> None:
        """After the same prompt, and after one that begins the same."""
        for what, before in (
            ("the same prompt again", self.prompt),
            ("a prompt that begins the same", self.prompt[:41] + self.prompt[:30]),
        ):
            engine = self.engine(step_tokens=24)
            engine.generate([before, self.strangers(4)[2].prompt], max_new=3)
            again = engine.generate([request])[0]
            self.compare(what, again.samples, want)
            if before is self.prompt and engine.prefixes is not None and not again.cached_tokens:
                raise ConformanceError(f"{self.recipe}: {what}: nothing came from the cache")
            if again.cached_tokens >= len(self.prompt):
                raise ConformanceError(f"{self.recipe}: {what}: the last token was not computed")
            self.finish(engine, what)

    def check_restored(self, request: Request, want: list[Sample]) -> None:
        """From a prefix that another engine saved."""
        engine = self.engine()
        if engine.prefixes is None:
            return
        engine.generate([self.prompt], max_new=2)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "prefix.kvik"
            engine.save_prefix(path, self.prompt)
            other = self.engine()
            length = other.load_prefix(path)
        got = other.generate([request])[0]
        if not 0 < length <= len(self.prompt) or not got.cached_tokens:
            raise ConformanceError(f"{self.recipe}: restored: {length} tokens, and no hit")
        self.compare("restored", got.samples, want)
        self.finish(other, "restored")

    def check_samples(self) -> None:
        """Parallel samples equal requests for one of them; also when preempted."""
        request = Request(self.prompt, SEEDED, max_new=NEW, logprobs=0)
        alone = []
        for index in range(3):
            engine = self.engine(prefix_cache=False, step_tokens=1000)
            alone += engine.generate([request], sample=index)[0].samples
        cases: list[tuple[tuple[int, ...], int]] = [((), 0), ((3, 6), 0), ((3, 6), 8 << 20)]
        for preempt, swap in cases if self.thorough else cases[1:]:
            engine = self.engine(swap=swap)
            engine.add(self.strangers(1)[0])
            mine = engine.add(request, n=3)
            self.compare("forked", _drive(engine, mine, preempt=preempt), alone)
            self.finish(engine, "forked")


def _drive(
    engine: Engine,
    mine: int,
    arrivals: dict[int, Request] | None = None,
    preempt: tuple[int, ...] = (),
) -> list[Sample]:
    """Steps an engine until request ``mine`` ends; its samples. The others are aborted then.

    ``arrivals`` come after so many steps; so is ``mine`` preempted, or as soon as it runs.
    """
    found: dict[int, Sample] = {}
    steps = 0
    while engine.busy:
        for output in engine.step():
            if output.id != mine:
                continue
            found.setdefault(output.sample, Sample()).add(output)
            if output.last:
                for other in range(mine + 5):  # whatever came before it and since
                    engine.abort(other)
        steps += 1
        if arrivals and steps in arrivals:
            engine.add(arrivals[steps])
        if preempt and steps >= preempt[0] and engine.preempt(mine):
            preempt = preempt[1:]
    return [found[index] for index in sorted(found)]
