"""One trace, one KV budget, four ways of managing it: where the bytes are and how many run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvik.bench.buddy import power_of_two
from kvik.bench.paged import Paged, check_pages, slot_bytes
from kvik.bench.reservation import POLICIES, Reservation
from kvik.bench.simulate import Run, System, simulate
from kvik.bench.trace import Arrival
from kvik.errors import CapacityError, KvikError
from kvik.machine import human_bytes
from kvik.recipe import Plan

# What a step of a 13B model takes on one accelerator, near enough to turn steps into seconds.
STEP_SECONDS = 0.04


@dataclass(frozen=True)
class Setting:
    """The budget and what is to be kept in it. ``context`` is the longest request, in tokens."""

    plan: Plan
    budget: int
    context: int
    step_seconds: float = STEP_SECONDS

    @property
    def slot(self) -> int:
        """Bytes of one token: the same for all systems, so that only their bookkeeping differs."""
        return slot_bytes(self.plan)

    def systems(self) -> list[System]:
        """The baselines, then kvik, each with the whole budget."""
        budget, slot, longest = self.budget, self.slot, self.context
        systems: list[System] = [
            Reservation(policy, budget=budget, slot_bytes=slot, longest=longest)
            for policy in POLICIES
        ]
        return [*systems, Paged(self.plan, budget=budget)]

    def check(self, trace: Sequence[Arrival]) -> None:
        """KvikError where a request is too long, or the budget too small for the longest."""
        check_pages(self.plan)
        if not self.step_seconds > 0:
            raise KvikError(f"a step takes some time, not {self.step_seconds:g} seconds")
        for number, arrival in enumerate(trace, 1):
            if arrival.final > self.context:
                raise KvikError(
                    f"request {number} of the trace needs {arrival.final:,} tokens and --context "
                    f"is {self.context:,}: raise it or shorten the trace"
                )
        # Max asks for a block of this size, so it has to exist.
        most = power_of_two(self.context)
        if self.budget // self.slot < most:
            raise CapacityError(
                f"{human_bytes(self.budget)} hold {self.budget // self.slot:,} tokens of "
                f"{self.slot:,} bytes, and a request of {self.context:,} needs a block of {most:,}:"
                f" give --memory {human_bytes(most * self.slot)} or more, or a smaller --context"
            )


def measure(
    setting: Setting, trace: Sequence[Arrival], begin: Callable[[str], None] = lambda name: None
) -> list[Run]:
    """Runs the trace on every system; ``begin`` is told whose turn it is."""
    setting.check(trace)
    runs = []
    for system in setting.systems():
        begin(system.name)
        runs.append(simulate(trace, system, step_seconds=setting.step_seconds))
    return runs


def document(setting: Setting, trace: Sequence[Arrival], runs: Sequence[Run]) -> dict[str, Any]:
    """The result as JSON has it. Shares are fractions of the region, idle of the budget."""
    return {
        "model": setting.plan.spec.name,
        "recipe": str(setting.plan.recipe),
        "memory_bytes": setting.budget,
        "slot_bytes": setting.slot,
        "slots": setting.budget // setting.slot,
        "context": setting.context,
        "page_tokens": sorted({group.tokens for group in setting.plan.groups}),
        "step_seconds": setting.step_seconds,
        "trace": {
            "requests": len(trace),
            "seconds": trace[-1].time,
            "prompt_mean": statistics.fmean(a.prompt for a in trace),
            "output_mean": statistics.fmean(a.output for a in trace),
            "tokens": sum(a.final for a in trace),
        },
        "systems": [_facts(run) for run in runs],
    }


def _facts(run: Run) -> dict[str, Any]:
    return {
        "system": run.system,
        "shares": run.parts.shares(),
        "idle": run.parts.idle / max(run.parts.total, 1),
        "byte_steps": run.parts._asdict(),
        "steps": run.steps,
        "concurrent_mean": run.mean,
        "concurrent_peak": run.peak,
        "finished": run.finished,
        "finished_in_time": run.in_time,
        "wait_seconds": run.wait,
        "seconds": run.seconds,
        "preemptions": {"recomputed": run.preempted.recomputed, "swapped": run.preempted.swapped},
        "recomputed_tokens": run.preempted.tokens,
    }
