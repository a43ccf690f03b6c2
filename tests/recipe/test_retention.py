"""What an evicting policy stores: the short cuts equal counting token by token."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvik.recipe import Amount, Evicting
from kvik.recipe.stage import REGISTRY
from kvik.testing import ConformanceError, check_stack, models


@dataclass(frozen=True)
class Share(Evicting):
    """Keeps an amount of tokens, and some more on later heads."""

    amount: Amount
    every: int
    more: int = 0

    @property
    def interval(self) -> int:
        return self.every

    @property
    def steady(self) -> bool:
        return True

    def budget(self, seen: int, layer: int, head: int) -> int:
        return self.amount.of(seen) + self.more * head


@dataclass(frozen=True)
class Listed(Evicting):
    """Budgets that rise and fall as they like."""

    budgets: tuple[int, ...]
    every: int

    @property
    def interval(self) -> int:
        return self.every

    def budget(self, seen: int, layer: int, head: int) -> int:
        return self.budgets[seen // self.every % len(self.budgets)]


def count(policy: Evicting, seen: int) -> tuple[int, int]:
    """Tokens stored in the end and at most, token by token."""
    stored = most = 0
    for position in range(seen):
        if position and position % policy.interval == 0:
            stored = min(stored, policy.budget(position, 0, 1))
        stored += 1
        most = max(most, stored)
    return stored, most


AMOUNTS = st.one_of(
    st.integers(0, 300).map(str),
    st.integers(0, 100).map(lambda n: f"{n}%"),
    st.integers(0, 99_999).map(lambda n: f"{n / 1000:.3f}%"),
).map(Amount.parse)


@given(AMOUNTS, st.integers(1, 40), st.integers(0, 9), st.integers(0, 400))
@example(Amount.parse("100%"), 7, 0, 400)
@example(Amount.parse("0%"), 1, 0, 1)
@example(Amount.parse("20%"), 16, 3, 17)
def test_steady_budgets(amount: Amount, every: int, more: int, seen: int) -> None:
    policy = Share(amount, every, more)
    assert (policy.stored(seen, 0, 1), policy.most_stored(seen, 0, 1)) == count(policy, seen)


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=9), st.integers(1, 20), st.integers(0, 300)
)
def test_any_budgets(budgets: list[int], every: int, seen: int) -> None:
    policy = Listed(tuple(budgets), every)
    assert (policy.stored(seen, 0, 1), policy.most_stored(seen, 0, 1)) == count(policy, seen)


@pytest.mark.parametrize("amount", ["20%", "99.999%", "512"])
def test_a_hundred_million_tokens_cost_nothing(amount: str) -> None:
    policy = Share(Amount.parse(amount), 1)
    start = time.perf_counter()
    for head in range(100):
        policy.stored(10**8, 0, head)
        policy.most_stored(10**8, 0, head)
    assert time.perf_counter() - start < 0.5


NINE = Amount.parse("9")


@dataclass(frozen=True)
class Leaping(Share):
    """Says that it is steady and is not."""

    names: ClassVar = {"leaping": {}}

    amount: Amount = NINE
    every: int = 8

    def budget(self, seen: int, layer: int, head: int) -> int:
        return 9 if seen < 40 else 30


def test_the_suite_sees_a_policy_that_is_not_steady() -> None:
    """The control: what such a policy says of itself is not believed."""
    with pytest.raises(ConformanceError, match="budgets of leaping are not steady"):
        check_stack("leaping", models.plain())


def teardown_module() -> None:
    del REGISTRY["leaping"]
