"""What a cache holds, told from its tables: by position, in tails, per head; faults show."""

from __future__ import annotations

import numpy as np
import pytest
from tests import tracers

from kvik.cache.table import Table
from kvik.engine.session import Session
from kvik.evaluate.held import held, layer_bytes, table_bytes
from kvik.plan import kv_bytes
from kvik.recipe.plan import page_ranges
from kvik.testing.models import plain, stateful

assert tracers.Heavy.examples  # importing them registered them
SEEN = 150


@pytest.fixture(scope="module")
def filled() -> dict[str, Session]:
    model = plain()
    recipes = (
        "fp32",
        "int8+page:16+window:40",
        "int8+page:16+sinks:4+window:30",
        "perchannel:8,residual=5+page:16",
        "fp16@0+int8+window:40",
        "heavy:20",
    )
    sessions = {}
    for recipe in recipes:
        sessions[recipe] = Session(model, recipe, max_tokens=SEEN)
        sessions[recipe].feed([(7 * i) % model.spec.vocab for i in range(SEEN)])
    return sessions


def test_bytes_of_layers_and_tables_are_everything(filled: dict[str, Session]) -> None:
    for recipe, session in filled.items():
        sizes = layer_bytes(session.plan, session.state)
        assert sum(sizes) + table_bytes(session.state) == session.kv_bytes, recipe
        assert sum(sizes) == kv_bytes(session.plan, SEEN).pages, recipe
    mixed = layer_bytes(filled["fp16@0+int8+window:40"].plan, filled["fp16@0+int8+window:40"].state)
    assert mixed[0] > mixed[1] > 0


def test_a_state_counts_with_its_layer() -> None:
    session = Session(stateful(), "int8", max_tokens=20)
    session.feed(list(range(20)))
    sizes = layer_bytes(session.plan, session.state)
    assert sizes[0] == 2 * 16 * 16 * 4
    assert sizes[2] == 0  # shares the cache of layer 1
    assert sum(sizes) + table_bytes(session.state) == session.kv_bytes


def test_every_position_is_held_without_eviction(filled: dict[str, Session]) -> None:
    for recipe in ("fp32", "perchannel:8,residual=5+page:16"):
        session = filled[recipe]
        parts = held(session.plan, session.state)
        assert {layer for part in parts for layer in part.layers} == {
            layer.index for layer in session.plan.layers if layer is not None
        }
        assert all(part.spans == [(0, SEEN)] for part in parts)


@pytest.mark.parametrize("recipe", ["int8+page:16+window:40", "int8+page:16+sinks:4+window:30"])
def test_windows_and_sinks_are_whole_pages(filled: dict[str, Session], recipe: str) -> None:
    session = filled[recipe]
    for part, group in zip(held(session.plan, session.state), session.plan.groups, strict=True):
        pages = page_ranges(group.main_ranges(SEEN), group.tokens)
        wanted = [(a * 16, min(b * 16, SEEN)) for a, b in pages]
        assert part.spans == wanted
        assert part.spans[0][0] == (0 if "sinks" in recipe else 96)


def test_each_head_holds_what_was_chosen_for_it(filled: dict[str, Session]) -> None:
    session = filled["heavy:20"]
    parts = held(session.plan, session.state)
    assert len({tuple(part.spans) for part in parts}) > 1
    for part, group in zip(parts, session.plan.groups, strict=True):
        assert group.evicting is not None
        assert part.head is not None
        count = sum(stop - start for start, stop in part.spans)
        assert count == group.evicting.stored(SEEN, part.layers[0], part.head)
        assert part.spans[-1][1] == SEEN


def test_a_page_that_is_missing_is_seen(filled: dict[str, Session]) -> None:
    session = filled["fp32"]
    main = session.state.main[0]
    assert isinstance(main, Table)
    lost = Table(np.delete(main.numbers, 1), np.delete(main.pages, 1))
    state = session.state._replace(main=(lost, *session.state.main[1:]))
    size = session.plan.groups[0].tokens
    assert held(session.plan, state)[0].spans == [(0, size), (2 * size, SEEN)]
    less = session.plan.groups[0].main.nbytes
    assert (
        sum(layer_bytes(session.plan, state))
        == sum(layer_bytes(session.plan, session.state)) - less
    )


def test_nothing_is_held_before_the_first_token() -> None:
    session = Session(plain(), "heavy:20", max_tokens=8)
    assert all(part.spans == [] for part in held(session.plan, session.state))
