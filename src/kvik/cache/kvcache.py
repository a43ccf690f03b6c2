"""KVCache: what a decoder talks to. plan, attend layer by layer, commit."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from kvik.cache.evicting import EvictingStep
from kvik.cache.pool import PagePool
from kvik.cache.positional import Planes, PositionalStep, expiry
from kvik.cache.table import EMPTY, RaggedTable, Sequence, State, Table
from kvik.errors import KvikError
from kvik.ops import Keys, Scoring, angles, attend, mass, rotate
from kvik.recipe.codec import Stream
from kvik.recipe.plan import LayerPlan, Plan, pages_of
from kvik.spec.model import LayerSpec, Rope

Streams = dict[Stream, Tensor]


@dataclass
class _Work:
    """One sequence's part of a step: rows ``low .. high`` of the flat batch."""

    sequence: Sequence
    low: int
    high: int
    groups: list[PositionalStep | EvictingStep]
    layer_states: list[Tensor | None]
    deferred: list[Callable[[], None]] = field(default_factory=list)
    shared: dict[int, Keys] = field(default_factory=dict)

    @property
    def start(self) -> int:
        return self.sequence.length

    @property
    def count(self) -> int:
        return self.high - self.low


class KVCache:
    """The cache of one model under one plan, for any number of sequences in one pool.

    A step is ``plan`` (allocates, stages), one ``attend`` per layer, then ``commit`` (publishes)
    or ``abort`` (leaves everything as it was). Between steps sequences can be forked and freed.
    """

    def __init__(self, plan: Plan, pool: PagePool) -> None:
        self.resolved, self.pool = plan, pool
        self._work: list[_Work] = []
        self._tentative = False
        self._angles: dict[tuple[Rope, str], tuple[Tensor, Tensor]] = {}
        self._sources = {layer.source for layer in plan.spec.layers if layer.kind == "shared"}

    # Sequences

    def create(self) -> Sequence:
        """An empty sequence."""
        groups = self.resolved.groups
        main = tuple(RaggedTable() if g.evicting else Table() for g in groups)
        tail = tuple(Table() if g.tail else None for g in groups)
        states = tuple(
            torch.zeros(layer.state_shape) if layer.kind == "state" else None
            for layer in self.resolved.spec.layers
        )
        return Sequence(State(0, main, tail, states))

    def snapshot(self, sequence: Sequence) -> State:
        """The sequence as it is now, its pages retained until :meth:`drop`."""
        self.pool.retain(sequence.state.pages())
        return sequence.state

    def restore(self, snapshot: State) -> Sequence:
        """A new sequence that continues from a snapshot; the snapshot stays valid."""
        self.pool.retain(snapshot.pages())
        return Sequence(snapshot)

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence with the same past; pages are shared until one of them differs."""
        return self.restore(sequence.state)

    def drop(self, state: State) -> None:
        """Gives up a snapshot's references."""
        self.pool.release(state.pages())

    def free(self, sequence: Sequence) -> None:
        """Ends a sequence; pages that nobody else holds are free at once."""
        self.pool.release(sequence.state.pages())
        sequence.state = self.create().state

    def can_cut(self, sequence: Sequence, length: int) -> bool:
        """Whether the sequence can go back to ``length`` tokens with nothing to recompute."""
        state = sequence.state
        if length == state.length:
            return True
        if not 0 <= length < state.length or any(s is not None for s in state.layer_states):
            return False
        for group, main in zip(self.resolved.groups, state.main, strict=True):
            if isinstance(main, RaggedTable) or group.waiting(length) != (
                group.waiting(state.length) if group.tail else length
            ):
                return False
            wanted = pages_of(group.main_ranges(length), group.tokens)
            if not np.isin(wanted, main.numbers).all():
                return False
        return True

    def cut(self, sequence: Sequence, length: int) -> None:
        """Goes back to ``length`` tokens; the caller has asked :meth:`can_cut`."""
        old = sequence.state
        if length == old.length:
            return
        pairs = zip(self.resolved.groups, old.main, old.tail, strict=True)
        main: list[Table | RaggedTable] = []
        tail: list[Table | None] = []
        for group, m, t in pairs:
            assert isinstance(m, Table)
            main.append(m.only(pages_of(group.main_ranges(length), group.tokens)))
            tail.append(t and t.only(pages_of(group.tail_ranges(length), group.tokens)))
        sequence.state = State(length, tuple(main), tuple(tail), old.layer_states)
        left = sequence.state.pages()
        self.pool.release(old.pages()[~np.isin(old.pages(), left)])

    def nbytes(self, *sequences: Sequence) -> int:
        """Bytes that the sequences hold: each page once, tables and states for each of them."""
        sizes = self.resolved.groups
        total = sum(s.state.table_bytes for s in sequences)
        for index, group in enumerate(sizes):
            pages = [s.state.main[index].pages for s in sequences]
            total += np.unique(np.concatenate([EMPTY, *pages])).size * group.main.nbytes
            if group.tail is not None:
                tails = [t.pages for s in sequences if (t := s.state.tail[index]) is not None]
                total += np.unique(np.concatenate([EMPTY, *tails])).size * group.tail.nbytes
        return total

    # A step

    def plan(self, sequences: Seq[Sequence], counts: Seq[int], *, tentative: bool = False) -> None:
        """Starts a step in which ``sequences[i]`` gets ``counts[i]`` new tokens.

        The flat batch holds the sequences' tokens one after another. A ``tentative`` step (draft
        tokens) writes nothing before ``commit(accepted)``. Raises CapacityError when the pool
        has not enough pages; nothing has changed then.
        """
        if self._work:
            raise KvikError("a step is already under way; commit or abort it first")
        if len(sequences) != len(counts) or any(n < 1 for n in counts):
            raise KvikError("a step needs at least one new token for every sequence")
        if len({id(s) for s in sequences}) < len(sequences):
            raise KvikError("a sequence can take part only once in a step; fork it")
        if tentative:
            self._check_tentative()
        low, work = 0, []
        try:
            for sequence, count in zip(sequences, counts, strict=True):
                states: list[Tensor | None] = [None] * len(self.resolved.layers)
                work.append(_Work(sequence, low, low + count, [], states))
                self._stage(work[-1], tentative)
                low += count
        except BaseException:
            _abort(work)
            raise
        self._work, self._tentative, self._angles = work, tentative, {}
        starts = [torch.arange(w.start, w.start + w.count) for w in work]
        self.positions = torch.cat(starts) if starts else torch.zeros(0, dtype=torch.int64)

    def _check_tentative(self) -> None:
        plan = self.resolved
        if any(g.evicting for g in plan.groups):
            raise KvikError(f"{plan.recipe} evicts by attention, so drafts cannot be taken back")
        if any(layer.kind == "state" for layer in plan.spec.layers):
            raise KvikError("drafts cannot be taken back on layers that keep a state")

    def _stage(self, work: _Work, tentative: bool) -> None:
        state = work.sequence.state
        span = (work.start, work.start + work.count)
        for group, main, tail in zip(self.resolved.groups, state.main, state.tail, strict=True):
            if isinstance(main, RaggedTable):
                work.groups.append(EvictingStep(self.pool, group, main, span))
            else:
                step = PositionalStep(self.pool, group, (main, tail), span, tentative)
                work.groups.append(step)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Rows (start, end) of each sequence in the flat batch of the current step."""
        return [(w.low, w.high) for w in self._work]

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
        if plan is None or not self._work:
            raise KvikError(f"layer {layer} caches no tokens, or no step was planned")
        out = q.new_empty((q.shape[0], spec.heads, plan.spec.v_dim))
        lse = q.new_empty((q.shape[0], spec.heads))
        for work in self._work:
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

    def _turn(self, x: Tensor, spec: LayerSpec, positions: Tensor, key: str) -> Tensor:
        """Rotates x [..., T, D] at ``positions`` [T]; angles are shared by the step's layers."""
        if spec.rope is None:
            return x
        at = (spec.rope, key)
        if at not in self._angles:
            self._angles[at] = angles(spec.rope, positions, x.dtype)
        return rotate(x, spec.rope, *self._angles[at])

    def _attend_one(
        self, work: _Work, plan: LayerPlan, spec: LayerSpec, q: Tensor, new: Streams
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
            return self._attend_heads(heads, plan, turned, positions, scoring, new)
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
        work: _Work,
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
            if self._tentative:
                work.deferred.append(write)
            else:
                write()
        return step.keys(k, v)

    def _attend_heads(
        self,
        heads: list[EvictingStep],
        plan: LayerPlan,
        q: Tensor,
        positions: Tensor,
        scoring: Scoring,
        new: Streams,
    ) -> tuple[Tensor, Tensor]:
        """Attention head by head and segment by segment between the policy's events."""
        outs, lses = [], []
        for h, step in enumerate(heads):
            step.load()
            parts = []
            for low, high in step.segments():
                rows = slice(low - step.start, high - step.start)
                step.append({s: x[h : h + 1, rows].float() for s, x in new.items()}, low, high)
                keys = _cast(step.keys(), q.dtype)
                if plan.k.pre_rope and plan.spec.rope is not None:
                    turn = angles(plan.spec.rope, keys.position, q.dtype)
                    keys = replace(keys, k=rotate(keys.k, plan.spec.rope, *turn))
                query, at = q[h : h + 1, :, rows], positions[rows]
                parts.append(attend(query, at, keys, scoring))
                if "mass" in step.policy.signals:
                    step.observe(mass(query, at, keys, scoring, parts[-1][1])[0])
            step.store()
            outs.append(torch.cat([o for o, _ in parts], 2))
            lses.append(torch.cat([s for _, s in parts], 2))
        return torch.cat(outs), torch.cat(lses)

    def read_state(self, layer: int) -> Tensor:
        """The state [B, *state_shape] of a ``state`` layer for the sequences of the step."""
        states = [w.layer_states[layer] for w in self._work]
        old = [w.sequence.state.layer_states[layer] for w in self._work]
        now = [s if s is not None else o for s, o in zip(states, old, strict=True)]
        return torch.stack([s for s in now if s is not None])

    def write_state(self, layer: int, state: Tensor) -> None:
        """Stages a new state [B, *state_shape]; published at commit, as float32."""
        for work, row in zip(self._work, state, strict=True):
            work.layer_states[layer] = row.to(torch.float32, copy=True)

    def commit(self, accepted: Seq[int] | None = None) -> None:
        """Publishes the step. ``accepted`` tokens of each sequence stay (tentative steps only)."""
        work, self._work = self._work, []
        if accepted is not None:
            if not self._tentative:
                self._work = work
                raise KvikError("only a tentative step can be accepted in part")
            for w, count in zip(work, accepted, strict=True):
                if not 0 <= count <= w.count:
                    self._work = work
                    raise KvikError(f"{count} of {w.count} tokens cannot be accepted")
        for i, w in enumerate(work):
            count = w.count if accepted is None else accepted[i]
            self._publish(w, w.start + count)

    def _publish(self, work: _Work, stop: int) -> None:
        if self._tentative:
            for step in work.groups:
                if isinstance(step, PositionalStep):
                    step.truncate(stop)
            for write in work.deferred:
                write()
        old = work.sequence.state
        states = zip(work.layer_states, old.layer_states, strict=True)
        if not self.resolved.recompute:
            work.sequence.state = State(
                stop,
                tuple(step.table for step in work.groups),
                tuple(
                    step.tail if isinstance(step, PositionalStep) else None for step in work.groups
                ),
                tuple(o if s is None else s for s, o in states),
            )
        for step in work.groups:
            self.pool.release(step.dropped())

    def abort(self) -> None:
        """Drops the step: every sequence is as it was before ``plan``."""
        work, self._work = self._work, []
        _abort(work)


def _abort(work: list[_Work]) -> None:
    for w in work:
        for step in w.groups:
            step.abort()


def _cast(keys: Keys, dtype: torch.dtype) -> Keys:
    if keys.k.dtype == keys.v.dtype == dtype:
        return keys
    return replace(keys, k=keys.k.to(dtype), v=keys.v.to(dtype))
