"""check_stack: the laws of a cache, on one stack and one tiny model.

The model computes in float64, so results of different cuts of the same work differ by rounding
far below the tolerance unless the logic differs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kvik.cache import KVCache, PagePool, choose_slab, dump, load
from kvik.cache.table import Sequence as Cached
from kvik.models import Model
from kvik.plan import kv_bytes, pool_capacity
from kvik.recipe import Plan, Recipe
from kvik.testing.choices import clear_choices
from kvik.testing.error import ConformanceError
from kvik.testing.oracle import OracleCache

LENGTH = 75
TOLERANCE = 2e-5
CHUNKS = (1, 7, 64, LENGTH)
MakeCache = Callable[[Plan, PagePool], KVCache]


@dataclass
class _Run:
    model: Model
    plan: Plan
    make: MakeCache
    tokens: list[int]
    want: Tensor

    def cache(self, sequences: int = 4) -> KVCache:
        """A cache in a fresh pool of NaN bytes, poisoned again whenever a page is freed."""
        sizes = self.plan.page_bytes
        slab = choose_slab(sizes) if sizes else 64
        capacity = pool_capacity(self.plan, len(self.tokens), slab, sequences)
        pool = PagePool(sizes, capacity, slab_bytes=slab, poison=True)
        pool.buffer.fill_(0xFF)
        return self.make(self.plan, pool)

    def feed(self, cache: KVCache, work: Sequence[tuple[Cached, list[int]]]) -> list[Tensor]:
        """One step; logits of each sequence."""
        cache.plan([s for s, _ in work], [len(t) for _, t in work])
        flat = torch.tensor([t for _, tokens in work for t in tokens])
        spans = cache.spans
        logits = self.model.forward(flat, cache.positions, cache)
        cache.commit()
        return [logits[a:b] for a, b in spans]

    def compare(self, what: str, got: Tensor, start: int = 0) -> None:
        """Law 1: within tolerance; greedy tokens agree where the margin exceeds twice that."""
        want = self.want[start : start + got.shape[0]]
        worst = float((got - want).abs().max())
        if not worst <= TOLERANCE:
            where = start + int((got - want).abs().amax(-1).argmax())
            raise ConformanceError(
                f"{self.plan.recipe}: {what}: logits differ by {worst:.2e} at {where}"
            )
        sure = clear_choices(want, TOLERANCE)
        if not torch.equal(got.argmax(-1)[sure], want.argmax(-1)[sure]):
            raise ConformanceError(f"{self.plan.recipe}: {what}: another greedy token")

    def weigh(self, cache: KVCache, sequence: Cached, what: str) -> None:
        """Law 3: planned bytes are allocated bytes."""
        planned, held = kv_bytes(self.plan, sequence.length).total, cache.nbytes(sequence)
        if planned != held:
            raise ConformanceError(
                f"{self.plan.recipe}: {what}: {held} bytes held, {planned} planned"
            )

    def finish(self, cache: KVCache, what: str, *sequences: Cached) -> None:
        """Law 7: freed means reusable now."""
        for sequence in sequences:
            cache.free(sequence)
        if used := cache.pool.stats().used:
            raise ConformanceError(
                f"{self.plan.recipe}: {what}: {used} bytes stay used after the end"
            )


def check_stack(recipe: str, model: Model, make: MakeCache = KVCache) -> None:
    """Raises RecipeError for a refused stack, ConformanceError for one that breaks a law."""
    plan = Recipe.parse(recipe).resolve(model.spec)
    _check_budgets(plan)
    chance = random.Random(11)
    tokens = [chance.randrange(model.spec.vocab) for _ in range(LENGTH)]
    run = _Run(model, plan, make, tokens, oracle_logits(model, plan, tokens))
    if plan.recompute:
        _check_recompute(run)
        return
    for check in (_check_chunks, _check_batch, _check_fork, _check_cut, _check_saved, _check_abort):
        check(run)
    if not any(g.evicting for g in plan.groups) and all(
        layer.kind != "state" for layer in model.spec.layers
    ):
        _check_drafts(run)


def oracle_logits(model: Model, plan: Plan, tokens: Sequence[int]) -> Tensor:
    """Logits [T, vocab] of the model over the oracle."""
    cache = OracleCache(plan)
    cache.plan(len(tokens))
    logits = model.forward(torch.tensor(tokens), cache.positions, cache)
    cache.commit()
    return logits


def _check_recompute(run: _Run) -> None:
    cache = run.cache()
    sequence = cache.create()
    cache.plan([sequence], [len(run.tokens)])
    logits = run.model.forward(torch.tensor(run.tokens), cache.positions, cache)
    cache.abort()
    run.compare("recomputed", logits)
    run.weigh(cache, sequence, "recomputed")


def _check_budgets(plan: Plan) -> None:
    """A policy that says its budgets are steady has budgets that are."""
    for group in plan.groups:
        policy, layer, head = group.evicting, group.layers[0].index, group.head
        if policy is None or head is None or not policy.steady:
            continue
        events = range(policy.interval, 100 * policy.interval, policy.interval)
        budgets = [policy.budget(event, layer, head) for event in events]
        if any(not 0 <= b - a <= policy.interval for a, b in pairwise(budgets)):
            raise ConformanceError(f"{plan.recipe}: the budgets of {policy} are not steady")


def _check_chunks(run: _Run) -> None:
    for size in CHUNKS:
        cache = run.cache()
        sequence = cache.create()
        for start in range(0, LENGTH, size):
            part = run.tokens[start : start + size]
            (logits,) = run.feed(cache, [(sequence, part)])
            run.compare(f"chunks of {size}", logits, start)
            run.weigh(cache, sequence, f"chunks of {size}")
        run.finish(cache, f"chunks of {size}", sequence)


def _check_batch(run: _Run) -> None:
    """Ragged, beside strangers that come and go."""
    cache, chance = run.cache(), random.Random(5)
    mine, other = cache.create(), cache.create()
    at = 0
    while at < LENGTH:
        n = min(chance.choice((1, 3, 17)), LENGTH - at)
        room = LENGTH - other.length
        stranger = [chance.randrange(run.model.spec.vocab) for _ in range(min(room, 9))]
        work = [(mine, run.tokens[at : at + n])]
        if stranger:
            work.insert(at % 2, (other, stranger))
        else:
            cache.free(other)
        logits = run.feed(cache, work)[[s is mine for s, _ in work].index(True)]
        run.compare("batched with strangers", logits, at)
        at += n
    run.weigh(cache, mine, "batched")
    run.finish(cache, "batched", mine, other)


def _check_fork(run: _Run) -> None:
    """Two sequences share a past, write on, and neither sees the other."""
    cache, half = run.cache(), LENGTH // 2
    first = cache.create()
    run.feed(cache, [(first, run.tokens[:half])])
    second = cache.fork(first)
    wrong = [(t + 1) % run.model.spec.vocab for t in run.tokens[half : half + 9]]
    run.feed(cache, [(second, wrong)])
    third = cache.fork(first)
    for start in range(half, LENGTH, 5):
        part = run.tokens[start : start + 5]
        a, b = run.feed(cache, [(first, part), (third, part)])
        run.compare("forked", a, start)
        run.compare("the fork", b, start)
    run.finish(cache, "forked", first, second, third)


def _check_cut(run: _Run) -> None:
    """Going back gives the same as never having gone on."""
    for back in (1, 5, 30):
        cache, stop = run.cache(), LENGTH - 8
        sequence = cache.create()
        run.feed(cache, [(sequence, run.tokens[: stop - 3])])
        run.feed(cache, [(sequence, [3, 1, 4])])
        snapshot = cache.snapshot(sequence)
        if cache.can_cut(sequence, stop - 3 - back):
            cache.cut(sequence, stop - 3 - back)
            run.weigh(cache, sequence, f"cut by {back}")
            start = stop - 3 - back
            (logits,) = run.feed(cache, [(sequence, run.tokens[start:])])
            run.compare(f"cut by {back}", logits, start)
        cache.drop(snapshot)
        run.finish(cache, f"cut by {back}", sequence)


def _check_saved(run: _Run) -> None:
    half = LENGTH // 2 + 3
    cache = run.cache()
    sequence = cache.create()
    run.feed(cache, [(sequence, run.tokens[:half])])
    identity, ids = run.model.identity, run.tokens[:half]
    data = dump(cache, sequence, ids=ids, marks=(5, half), domain="mine", identity=identity)
    run.finish(cache, "saved", sequence)
    other = run.cache()
    saved = load(other, data, identity=identity)
    if (list(saved.ids), saved.marks, saved.domain) != (ids, (5, half), "mine"):
        raise ConformanceError(f"{run.plan.recipe}: another text was restored than was saved")
    restored = saved.sequence
    run.weigh(other, restored, "restored")
    (logits,) = run.feed(other, [(restored, run.tokens[half:])])
    run.compare("restored", logits, half)
    run.finish(other, "restored", restored)


def _check_abort(run: _Run) -> None:
    """A step that fails leaves everything as it was."""
    cache, half = run.cache(), LENGTH // 2
    sequence = cache.create()
    run.feed(cache, [(sequence, run.tokens[:half])])
    used, state = cache.pool.stats().used, sequence.state
    cache.plan([sequence], [9])
    run.model.forward(torch.tensor([1] * 9), cache.positions, cache)
    cache.abort()
    if cache.pool.stats().used != used or sequence.state is not state:
        raise ConformanceError(f"{run.plan.recipe}: an aborted step left something behind")
    (logits,) = run.feed(cache, [(sequence, run.tokens[half:])])
    run.compare("after an abort", logits, half)
    run.finish(cache, "aborted", sequence)


def _check_drafts(run: _Run) -> None:
    """Draft tokens: only the accepted ones count."""
    cache, at = run.cache(), 20
    sequence = cache.create()
    run.feed(cache, [(sequence, run.tokens[:at])])
    for accepted in (0, 2, 5, 3):
        right = run.tokens[at : at + accepted]
        draft = right + [(t + 1) % run.model.spec.vocab for t in run.tokens[at + accepted : at + 5]]
        cache.plan([sequence], [len(draft)], tentative=True)
        logits = run.model.forward(torch.tensor(draft), cache.positions, cache)
        run.compare("drafts", logits[:accepted], at) if accepted else None
        cache.commit([accepted])
        at += accepted
        run.weigh(cache, sequence, "drafts")
    (logits,) = run.feed(cache, [(sequence, run.tokens[at:])])
    run.compare("after drafts", logits, at)
    run.finish(cache, "drafts", sequence)
