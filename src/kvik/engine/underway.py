"""Prefixes under way: a request waits for what another is computing instead of computing it too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvik.engine.identity import common_prefix
from kvik.engine.job import Job, Status

if TYPE_CHECKING:
    from kvik.engine.memory import Memory
    from kvik.engine.prefix import Hit

MAX_STOPS = 8  # snapshots that others may ask of one prompt


class Underway:
    """Which blocks of prompts running jobs are about to compute, by their digests."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self._owner: dict[bytes, Job] = {}

    def announce(self, job: Job) -> None:
        """Says which blocks of its prompt a job is about to compute."""
        block, lead, prompt = self.memory.block, job.lead, job.request.prompt
        if block and job.request.share:
            job.announced = True
            for end in range((lead.computed // block + 1) * block, len(prompt) + 1, block):
                self._owner.setdefault(lead.text.prefix_digest(end), job)

    def settle(self, job: Job) -> None:
        """Takes that back: they are computed, or the job runs no longer."""
        block, text = self.memory.block, job.branches[0].text
        if job.announced:
            job.announced = False
            for end in range(block, len(job.request.prompt) + 1, block):
                if self._owner.get(text.prefix_digest(end)) is job:
                    del self._owner[text.prefix_digest(end)]

    def awaits(self, job: Job, hit: Hit | None) -> bool:
        """Whether a running job is computing the prefix that a waiting one needs next."""
        if hit is None or job.status is Status.SWAPPED:
            return False
        text, block = job.lead.text, self.memory.block
        end = (hit.length // block + 1) * block
        owner = self._owner.get(text.prefix_digest(end)) if end <= len(text.ids) else None
        if owner is None:
            return False
        common = common_prefix(owner.request.prompt, text.ids)
        job.awaits = (owner, common)
        if not self.memory.cuttable and len(owner.stops) < MAX_STOPS:
            owner.stops.add(common)  # a snapshot where the two texts part
        return self.still_awaits(job)

    def still_awaits(self, job: Job) -> bool:
        """The same for one that was found to wait before."""
        if job.awaits is None:
            return False
        owner, length = job.awaits
        if owner.status is Status.RUNNING and max(b.computed for b in owner.live) < length:
            return True
        job.awaits = None
        return False
