"""KVCache: what a decoder talks to. plan, attend layer by layer, commit."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from kvik.cache.evicting import EvictingStep
from kvik.cache.heads import attend_heads
from kvik.cache.paged import Paged
from kvik.cache.pool import PagePool
from kvik.cache.positional import Planes, PositionalStep, expiry
from kvik.cache.sequences import Sequences
from kvik.cache.step import Step, Work
from kvik.cache.table import Sequence
from kvik.errors import KvikError
from kvik.ops import Keys, Scoring, angles, attend, rotate
from kvik.ops.native_attention import Place, attend_pages
from kvik.ops.native_layers import Places
from kvik.recipe.codec import Stream
from kvik.recipe.plan import LayerPlan, Plan
from kvik.spec.model import LayerSpec, Rope

Streams = dict[Stream, Tensor]


class KVCache(Sequences):
    """The cache of one model under one plan, for any number of sequences in one pool.

    A step is ``plan`` (allocates, stages), one ``attend`` per layer (or ``places``, for kernels
    that run several), then ``commit`` (publishes) or ``abort`` (leaves everything as it was).
    Between steps sequences can be forked and freed.
    """

    def __init__(self, plan: Plan, pool: PagePool) -> None:
        super().__init__(plan, pool)
        self._step: Step | None = None
        self._paged = Paged(plan)
        self._angles: dict[tuple[Rope, str], tuple[Tensor, Tensor]] = {}
        self._sources = {layer.source for layer in plan.spec.layers if layer.kind == "shared"}

    def demand(self, sequence: Sequence, count: int) -> tuple[int, ...]:
        """The pages of each of ``pool.page_bytes`` that a step of ``count`` tokens allocates.

        What :meth:`plan` asks for is the sum over its sequences.
        """
        return self._stager.demand(sequence.state, sequence.length + count)

    def demand_of(self, sequences: Seq[Sequence], counts: Seq[int]) -> tuple[int, ...]:
        """The sum for several sequences, worked out for all of them at once."""
        return self._stager.demand_of([s.state for s in sequences], counts)

    def plan(self, sequences: Seq[Sequence], counts: Seq[int], *, tentative: bool = False) -> None:
        """Starts a step in which ``sequences[i]`` gets ``counts[i]`` new tokens.

        The flat batch holds the sequences' tokens one after another. A ``tentative`` step (draft
        tokens) writes nothing before ``commit(accepted)``. Raises CapacityError when the pool
        has not enough pages; nothing has changed then.
        """
        if self._step is not None:
            raise KvikError("a step is already under way; commit or abort it first")
        if len(sequences) != len(counts) or min(counts, default=1) < 1:
            raise KvikError("a step needs at least one new token for every sequence")
        if len(set(sequences)) < len(sequences):
            raise KvikError("a sequence can take part only once in a step; fork it")
        if tentative:
            self._check_tentative()
        self._step = Step(self._stager, sequences, counts, tentative)
        self._angles = {}

    def _check_tentative(self) -> None:
        plan = self.resolved
        if any(g.evicting for g in plan.groups):
            raise KvikError(f"{plan.recipe} evicts by attention, so drafts cannot be taken back")
        if any(layer.kind == "state" for layer in plan.spec.layers):
            raise KvikError("drafts cannot be taken back on layers that keep a state")

    @property
    def at(self) -> list[int]:
        """Position of every row of the flat batch of the current step."""
        return self._now.at

    @property
    def positions(self) -> Tensor:
        """The same as int64 [N]."""
        return self._now.positions

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Rows (start, end) of each sequence in the flat batch of the current step."""
        ends = list(accumulate(self._now.counts))
        return list(zip([0, *ends], ends, strict=False))

    @property
    def _now(self) -> Step:
        if self._step is None:
            raise KvikError("no step was planned")
        return self._step

    def attend(
        self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Attention of one layer over the cache and the step's own tokens.

        q [N, heads, D], k [N, H, D] and v [N, H, Dv] come before RoPE; v is None on latent
        layers, k and v are None on layers that share another layer's cache. Returns the output
        [N, heads, Dv] and the log-sum-exp of the scores [N, heads].
        """
        spec = self.resolved.spec.layers[layer]
        source = layer if spec.source is None else spec.source
        plan = self.resolved.layers[source]
        if plan is None or self._step is None:
            raise KvikError(f"layer {layer} caches no tokens, or no step was planned")
        if q.dtype == torch.float32 and (place := self._paged.place(layer, self._step)) is not None:
            return attend_pages(place, q, k, v)
        out = q.new_empty((q.shape[0], spec.heads, plan.spec.v_dim))
        lse = q.new_empty((q.shape[0], spec.heads))
        for work in self._step.works:
            rows = slice(work.low, work.high)
            query = q[rows].view(work.count, plan.spec.kv_heads, -1, q.shape[-1])
            new: Streams = {}
            if k is not None:
                new["k"] = k[rows].transpose(0, 1)
            if v is not None:
                new["v"] = v[rows].transpose(0, 1)
            o, s = self._attend_one(work, plan, spec, query.permute(1, 2, 0, 3), new)
            out[rows] = o.permute(2, 0, 1, 3).flatten(1, 2)
            lse[rows] = s.permute(2, 0, 1).flatten(1)
        return out, lse

    def place(self, layer: int) -> Place | None:
        """Where the step finds the tokens of a layer; None when no native kernel can attend it."""
        return self._paged.place(layer, self._now)

    def places(self, layers: Seq[int]) -> Places | None:
        """Where the step finds the tokens of these layers, for kernels that run them all in a call.

        None when the native kernels cannot attend one of them.
        """
        return self._paged.places(tuple(layers), self._now)

    def _turn(self, x: Tensor, spec: LayerSpec, positions: Tensor, key: str) -> Tensor:
        """Rotates x [..., T, D] at ``positions`` [T]; angles are shared by the step's layers."""
        if spec.rope is None:
            return x
        at = (spec.rope, key)
        if at not in self._angles:
            self._angles[at] = angles(spec.rope, positions, x.dtype)
        return rotate(x, spec.rope, *self._angles[at])

    def _attend_one(
        self, work: Work, plan: LayerPlan, spec: LayerSpec, q: Tensor, new: Streams
    ) -> tuple[Tensor, Tensor]:
        """q [H, G, n, D], new streams [H, n, D], all before RoPE."""
        positions = self.positions[work.low : work.high]
        now = f"{work.low}"
        turned = self._turn(q, spec, positions, now)
        if new and not plan.k.pre_rope:
            new["k"] = self._turn(new["k"], spec, positions, now)
        second = None
        if plan.kept.in_cache and plan.kept.span is not None:
            span = plan.kept.span
            second = self._turn(q, spec, positions.clamp(max=span - 1), f"{now} within {span}")
        scoring = Scoring(spec.scale, spec.softcap)
        groups = [work.groups[g.index] for g in self.resolved.groups_of_layer.get(plan.index, ())]
        if groups and isinstance(groups[0], EvictingStep):
            heads = [g for g in groups if isinstance(g, EvictingStep)]
            return attend_heads(heads, turned, positions, scoring, new)
        if plan.index in work.shared and not new:
            keys = work.shared[plan.index]
        elif not groups:
            value = new["v"] if plan.v is not None else new["k"][..., : spec.v_dim]
            keys = Keys(new["k"], value, positions, positions, expiry(positions, plan))
        else:
            step = groups[0]
            assert isinstance(step, PositionalStep)
            keys = _cast(self._keys(work, step, plan, new, q.dtype), q.dtype)
        if plan.index in self._sources:
            work.shared[plan.index] = keys
        return attend(turned, positions, keys, scoring, second)

    def _keys(
        self,
        work: Work,
        step: PositionalStep,
        plan: LayerPlan,
        new: Streams,
        dtype: torch.dtype,
    ) -> Keys:
        """Stored and new entries of a layer; the new ones are written, or will be at commit."""
        k, *k_parts = step.stream(plan, "k", new["k"].float())
        pending: list[tuple[Stream, list[Planes]]] = [("k", k_parts)]
        if plan.k.pre_rope:
            at = step.sources(plan.k)[0]
            k = self._turn(k.to(dtype), plan.spec, at, f"{work.low} {step.group.index} {plan.k}")
        if plan.v is None:
            v = k[..., : plan.spec.v_dim]
        else:
            v, *v_parts = step.stream(plan, "v", new["v"].float())
            pending.append(("v", v_parts))
        for stream, (codes, held) in pending:
            write = partial(step.store, plan, stream, codes, held)
            if self._now.tentative:
                work.deferred.append(write)
            else:
                write()
        return step.keys(k, v)

    def read_state(self, layer: int) -> Tensor:
        """The state [B, *state_shape] of a ``state`` layer for the sequences of the step."""
        step = self._now
        if layer in step.written:
            return torch.stack(step.written[layer])
        rows = (s.layer_states[layer] for s in step.before)
        return torch.stack([row for row in rows if row is not None])

    def write_state(self, layer: int, state: Tensor) -> None:
        """Stages a new state [B, *state_shape]; published at commit, as float32."""
        self._now.written[layer] = [row.to(torch.float32, copy=True) for row in state]

    def commit(self, accepted: Seq[int] | None = None) -> None:
        """Publishes the step. ``accepted`` tokens of each sequence stay (tentative steps only).

        When something interrupts it, every sequence is as it was before ``plan``.
        """
        step = self._now
        if accepted is not None:
            if not step.tentative:
                raise KvikError("only a tentative step can be accepted in part")
            for count, most in zip(accepted, step.counts, strict=True):
                if not 0 <= count <= most:
                    raise KvikError(f"{count} of {most} tokens cannot be accepted")
        self._step = None
        step.commit(accepted)

    def abort(self) -> None:
        """Drops the step: every sequence is as it was before ``plan``."""
        if self._step is not None:
            self._step.abort()
            self._step = None


def _cast(keys: Keys, dtype: torch.dtype) -> Keys:
    if keys.k.dtype == keys.v.dtype == dtype:
        return keys
    return replace(keys, k=keys.k.to(dtype), v=keys.v.to(dtype))
