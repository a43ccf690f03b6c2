"""Any order of starting, going on, storing, ending and giving up, in a tiny poisoned pool."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.engine.prefix_runner import Make, Runner, near, solo

from kvik.cache import Sequence
from kvik.engine.identity import Text
from kvik.errors import CapacityError
from kvik.testing import models

# Few different tokens, so that texts have beginnings in common.
short = st.lists(st.integers(0, 1), min_size=1, max_size=9)
index = st.integers(0, 99)
STEMS = [[0] * 14, [0] * 11 + [1] * 9]


class PrefixMachine(RuleBasedStateMachine):
    """Sequences with their texts, next to the prefix cache they start from and store to."""

    kind: tuple[Make, str]
    limit = 45

    def __init__(self) -> None:
        super().__init__()
        self.runner = Runner(*self.kind, sequences=1)
        self.live: list[tuple[Text, Sequence]] = []

    def _feed(self, text: Text, sequence: Sequence, tokens: list[int]) -> bool:
        """Whether there was room; what comes out must be what a solo run gives."""
        runner, start = self.runner, sequence.length
        demand = runner.cache.demand(sequence, len(tokens))
        if not runner.prefix.evict(demand):
            with pytest.raises(CapacityError):
                runner.cache.plan([sequence], [len(tokens)])
            return False
        logits = runner.feed(sequence, tokens)
        for token in tokens[len(text) - start :]:
            text.append(token)
        near(logits, solo(*self.kind, tuple(text.ids))[start:])
        return True

    @rule(stem=st.sampled_from(STEMS), cut=st.integers(0, 20), more=short, store=st.booleans())
    def start(self, stem: list[int], cut: int, more: list[int], store: bool) -> None:
        text = self.runner.prefix.text(stem[:cut] + more)
        _, sequence = self.runner.start(text)
        if not self._feed(text, sequence, text.ids[sequence.length :]):
            self.runner.cache.free(sequence)
            return
        self.live.append((text, sequence))
        if store:
            self.runner.prefix.insert(text, sequence)

    @precondition(lambda self: self.live)
    @rule(which=index, tokens=short, store=st.booleans())
    def go_on(self, which: int, tokens: list[int], store: bool) -> None:
        text, sequence = self.live[which % len(self.live)]
        if len(text) + len(tokens) <= self.limit and self._feed(text, sequence, tokens) and store:
            self.runner.prefix.insert(text, sequence)

    @precondition(lambda self: self.live)
    @rule(which=index)
    def fork(self, which: int) -> None:
        text, sequence = self.live[which % len(self.live)]
        self.live.append((text.fork(), self.runner.cache.fork(sequence)))

    @precondition(lambda self: self.live)
    @rule(which=index, store=st.booleans())
    def end(self, which: int, store: bool) -> None:
        text, sequence = self.live.pop(which % len(self.live))
        if store:
            self.runner.prefix.insert(text, sequence)
        self.runner.cache.free(sequence)

    @rule(pages=st.integers(0, 9))
    def evict(self, pages: int) -> None:
        runner = self.runner
        demand = (pages,) * len(runner.pool.page_bytes)
        possible = runner.pool.can_alloc(demand, evict=True)
        before = runner.prefix.stats()
        assert runner.prefix.evict(demand) == possible == runner.pool.can_alloc(demand)
        if not possible:
            assert runner.prefix.stats() == before

    @rule()
    def clear(self) -> None:
        self.runner.prefix.clear()

    @invariant()
    def books(self) -> None:
        self.runner.check_books(*(s for _, s in self.live))

    @invariant()
    def entries_stand_for_their_texts(self) -> None:
        prefix = self.runner.prefix
        for entry in prefix.entries():
            text = prefix.text_of(entry)
            assert len(text) == entry.length
            assert text.prefix_digest(entry.length) == entry.digest
            hit = prefix.match(text, entry.length)
            assert hit.length == entry.length, "every entry can be found"

    def teardown(self) -> None:
        self.runner.close(*(s for _, s in self.live))


@pytest.mark.parametrize(
    ("make", "recipe"),
    [
        (models.plain, "int8+page:4"),
        (models.plain, "int8+page:4@0+page:8@1"),
        (models.plain, "sinks:3+window:9+page:4"),
        (models.plain, "perchannel:4,residual=3+page:8"),
        (models.plain, "heavy:5,every=8+page:4"),
        (models.stateful, "int8+page:4"),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_any_order_of_operations(make: Make, recipe: str) -> None:
    machine = type("Machine", (PrefixMachine,), {"kind": (make, recipe)}).TestCase
    machine.settings = settings(max_examples=12, stateful_step_count=25)
    machine("runTest").debug()
