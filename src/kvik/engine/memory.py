"""The KV memory of an engine: one pool, the prefix cache in it, and host memory to swap to."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from kvik.cache import KVCache
from kvik.cache.swap import swap_in, swap_out
from kvik.engine.job import Branch, Job
from kvik.engine.prefix import Hit, PrefixCache, block_of, cuttable
from kvik.plan.bytes import step_peak

Demand = tuple[int, ...]


class Memory:
    """Pages for jobs: what they need, whether it is there, giving them and taking them back.

    A demand counts pages of each of the pool's sizes. ``swap_bytes`` of host memory hold the pages
    of preempted jobs; a job that does not fit there is recomputed instead. Without ``prefixes``
    nothing is shared between requests.
    """

    def __init__(self, cache: KVCache, prefixes: PrefixCache | None, swap_bytes: int = 0) -> None:
        self.cache, self.pool, self.prefixes = cache, cache.pool, prefixes
        self.swap_bytes, self.swapped_bytes = swap_bytes, 0
        plan = cache.resolved
        self.whole = plan.recompute
        self._page = block_of(plan)
        self.block = 0 if prefixes is None else prefixes.block
        self.cuttable = cuttable(plan)
        self._appends = not any(group.evicting or group.tail for group in plan.groups)
        self.nothing: Demand = (0,) * len(self.pool.page_bytes)
        formats = [page for g in plan.groups for page in (g.main, g.tail) if page is not None]
        self._page_each = tuple(
            sum(page.nbytes == size for page in formats) for size in self.pool.page_bytes
        )

    # What is needed

    @staticmethod
    def add(a: Demand, b: Demand) -> Demand:
        """The sum of two demands."""
        return tuple([x + y for x, y in zip(a, b, strict=True)])

    def demand(self, branch: Branch, count: int) -> Demand:
        """What a branch needs for its next ``count`` tokens."""
        assert branch.sequence is not None
        return self.cache.demand(branch.sequence, count)

    def demand_of_decodes(self, branches: Seq[Branch]) -> Demand:
        """What branches need for one token each, together."""
        sequences = [branch.sequence for branch in branches if branch.sequence is not None]
        return self.cache.demand_of(sequences, [1] * len(sequences))

    def peak(self, tokens: int) -> Demand:
        """Most pages that one sequence holds while it grows to ``tokens`` tokens."""
        most = step_peak(self.cache.resolved, tokens)
        return tuple(most.get(size, 0) for size in self.pool.page_bytes)

    def peak_of_group(self, prompt: int, lengths: Seq[int]) -> Demand:
        """The same for sequences of these lengths that fork after ``prompt`` tokens.

        Full pages of the prompt count once where nothing but appending ever touches them.
        """
        first, *others = [self.peak(length) for length in lengths]
        full = prompt // self._page * self._page if self.cuttable else 0
        shared = self.peak(full) if full and others else self.nothing
        for peak in others:
            own = tuple(p - s for p, s in zip(peak, shared, strict=True))
            first = self.add(first, own)
        return first

    def demand_of_group(self, job: Job) -> Demand:
        """What a job needs for all its known tokens, now that its first branch has its prefix."""
        lead = job.lead
        others = [branch for branch in job.live if branch is not lead]
        lengths = [branch.known for branch in (lead, *others)]
        need = self.demand(lead, lead.known - lead.computed)
        if others:
            alone = self.peak(lengths[0])
            rest = self.peak_of_group(len(job.request.prompt), lengths)
            need = tuple(n + r - a for n, r, a in zip(need, rest, alone, strict=True))
        return need

    def could_hold(self, demand: Demand) -> bool:
        """Whether the pool, with nothing else in it, has these pages."""
        slabs = 0
        for count, size in zip(demand, self.pool.page_bytes, strict=True):
            slabs += -(-count // (self.pool.slab_bytes // size))
        return slabs * self.pool.slab_bytes <= self.pool.nbytes

    def reserve(self, sequences: int) -> Demand:
        """A page of each kind for every one of some sequences: room to go on for a while."""
        return self._pages_each(sequences)

    def _pages_each(self, times: int) -> Demand:
        return tuple([times * count for count in self._page_each])

    def ample(self, sequences: int) -> bool:
        """Whether there is room for one token of each sequence, whatever pages that takes.

        Where every token is coded at once it needs at most a new page and the copy of a shared
        one in each table. Late codes and evicting policies can need more: they are counted.
        """
        return self._appends and self.pool.can_alloc(self._pages_each(2 * sequences))

    def make_room(self, demand: Demand) -> bool:
        """Whether these pages can be had, giving up cached prefixes if it takes that."""
        if demand == self.nothing or self.pool.can_alloc(demand):
            return True
        return self.prefixes is not None and self.prefixes.evict(demand)

    # Giving and taking

    def match(self, branch: Branch) -> Hit | None:
        """The longest stored prefix that leaves the last token to be computed, for its logits.

        Where siblings are to fork off at the end of the prompt that is its last token.
        """
        if self.prefixes is None:
            return None
        return self.prefixes.match(branch.text, branch.job.target(branch) - 1)

    def start(self, branch: Branch, hit: Hit | None) -> None:
        """Gives a branch its sequence: from a stored prefix, or empty."""
        if self.prefixes is not None and hit is not None and hit.length:
            branch.sequence = self.prefixes.take(hit)
        else:
            branch.sequence = self.cache.create()

    def note(self, hit: Hit | None) -> None:
        """Counts a prefix that was looked for, and used if it was there."""
        if self.prefixes is not None and hit is not None:
            self.prefixes.note(hit)

    def remember(self, branch: Branch) -> None:
        """Offers what a branch has computed so far to later requests."""
        if self.prefixes is not None and branch.job.request.share and branch.computed:
            assert branch.sequence is not None
            self.prefixes.insert(branch.text, branch.sequence)

    def release(self, branch: Branch) -> None:
        """Takes a branch's pages; what the prefix cache holds of them stays until needed."""
        if branch.sequence is not None:
            self.cache.free(branch.sequence)
            branch.sequence = None

    def park(self, job: Job) -> bool:
        """Takes all pages of a job; whether they are in host memory, to be had back."""
        holding = [b for b in job.live if b.sequence is not None]
        sequences = [b.sequence for b in holding if b.sequence is not None]
        size = self.cache.nbytes(*sequences)
        if sequences and self.swap_bytes and self.swapped_bytes + size <= self.swap_bytes:
            job.swapped, job.parked = swap_out(self.cache, sequences), holding
            self.swapped_bytes += job.swapped.nbytes
            for branch in holding:
                branch.sequence = None
            return True
        for branch in holding:
            self.remember(branch)
            self.release(branch)
        return False

    def unpark(self, job: Job) -> None:
        """Gives a swapped job its pages back; CapacityError, nothing changed, without room."""
        assert job.swapped is not None
        sequences = swap_in(self.cache, job.swapped)
        for branch, sequence in zip(job.parked, sequences, strict=True):
            branch.sequence = sequence
        self.drop_swapped(job)

    def drop_swapped(self, job: Job) -> None:
        """Gives up what host memory holds of a job."""
        if job.swapped is not None:
            self.swapped_bytes -= job.swapped.nbytes
            job.swapped, job.parked = None, []

    def compact(self, job: Job) -> None:
        """Moves a job's pages together by way of host memory, so that slabs become free.

        It is alone: of the prefix cache, whose pages lie between its own, nothing can stay.
        """
        holding = [b for b in job.live if b.sequence is not None]
        sequences = [b.sequence for b in holding if b.sequence is not None]
        moved = swap_out(self.cache, sequences)
        if self.prefixes is not None:
            self.prefixes.clear()
        for branch, sequence in zip(holding, swap_in(self.cache, moved), strict=True):
            branch.sequence = sequence
