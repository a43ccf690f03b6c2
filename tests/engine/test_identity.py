"""Identities of texts: what is in them, that nothing passes for anything else, and their cost."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvik.engine.identity import Identity, Text, fields, numbers, sha256
from kvik.models import Model
from kvik.recipe import Recipe
from kvik.testing import models

PLAIN = Identity(b"recipe", b"model", b"layout", 4)
names = st.text("abcde_", min_size=1, max_size=3)


@given(
    st.dictionaries(names, st.binary(max_size=4), max_size=3),
    st.dictionaries(names, st.binary(max_size=4), max_size=3),
)
def test_other_fields_give_other_bytes(a: dict[str, bytes], b: dict[str, bytes]) -> None:
    assert (fields(**a) == fields(**b)) == (list(a.items()) == list(b.items()))


def test_a_value_cannot_pass_for_another_field_or_spill_into_the_next() -> None:
    assert fields(adapter=b"X", salt=b"") != fields(adapter=b"", salt=b"X")
    assert fields(a=b"1", b=b"2") != fields(a=b"1 b 1:2")
    roots = {
        Identity(recipe, model, layout, 4).root(domain)
        for recipe, model, layout, domain in (
            (b"X", b"", b"", ""),
            (b"", b"X", b"", ""),
            (b"", b"", b"X", ""),
            (b"", b"", b"", "X"),
        )
    }
    assert len(roots) == 4


@given(st.binary(max_size=9), st.lists(st.integers()), st.lists(st.integers(0, 40), max_size=3))
def test_a_link_is_the_digest_of_its_fields(
    parent: bytes, ids: list[int], marks: list[int]
) -> None:
    identity = Identity(b"", b"", b"", 4, digest=lambda data: data)
    want = fields(kind=b"block", parent=parent, ids=numbers(ids), marks=numbers(marks))
    assert identity.link(parent, ids, marks) == want


def test_everything_that_decides_cached_bytes_is_in_the_root() -> None:
    def root(
        make: Callable[[], Model], recipe: str, domain: str = "", model: bytes = b"m"
    ) -> bytes:
        plan = Recipe.parse(recipe).resolve(make().spec)
        return Identity.of(plan, model, 32).root(domain)

    roots = [
        root(models.plain, "fp16"),
        root(models.plain, "int8"),
        root(models.plain, "fp16+page:16"),
        root(models.plain, "fp16", domain="tenant"),
        root(models.plain, "fp16", model=b"n"),
        root(models.latent, "fp16"),
    ]
    assert len(set(roots)) == len(roots)
    assert root(models.plain, "fp16") == roots[0]


@given(st.lists(st.integers(0, 9), max_size=23), st.sets(st.integers(0, 23), max_size=3))
def test_a_grown_text_equals_one_made_at_once(ids: list[int], marks: set[int]) -> None:
    whole, grown = Text(PLAIN, ids, marks, "d"), Text(PLAIN, (), marks, "d")
    for index, token in enumerate(ids):
        grown.append(token)
        if index % 3 == 0:
            grown.prefix_digest(len(grown))
    assert (grown.ids, grown.symbols) == (whole.ids, whole.symbols) == (ids, whole.symbols)
    for length in range(len(ids) + 1):
        assert grown.prefix_digest(length) == whole.prefix_digest(length)
        cut = Text(PLAIN, ids[:length], {m for m in marks if m < length}, "d")
        assert cut.prefix_digest(length) == whole.prefix_digest(length), "later marks do not count"
    for block in range(len(ids) // 4):
        assert whole.digest(block) == whole.prefix_digest(4 * block + 4)


def test_every_difference_in_a_prefix_changes_all_digests_behind_it() -> None:
    ids = random.Random(1).choices(range(50), k=16)
    base = Text(PLAIN, ids)
    for at in range(16):
        other = Text(PLAIN, [*ids[:at], ids[at] + 1, *ids[at + 1 :]])
        marked = Text(PLAIN, ids, {at})
        for length in range(17):
            same = length <= at
            assert (other.prefix_digest(length) == base.prefix_digest(length)) == same
            assert (marked.prefix_digest(length) == base.prefix_digest(length)) == same


def test_lengths_count_and_ids_may_be_of_any_size() -> None:
    zeros = Text(PLAIN, [0] * 12)
    assert len({zeros.prefix_digest(n) for n in range(13)}) == 13
    image = int.from_bytes(sha256(b"an image"), "little")
    digests = {
        Text(PLAIN, ids).prefix_digest(len(ids))
        for ids in ([image], [image + 1], [-image], [image, 5], [5, image], [5], [-5], [2**63])
    }
    assert len(digests) == 8


def test_a_fork_goes_on_by_itself() -> None:
    text = Text(PLAIN, [1, 2, 3], {4})
    twin = text.fork()
    text.append(4)
    twin.append(5)
    assert (text.ids, twin.ids) == ([1, 2, 3, 4], [1, 2, 3, 5])
    assert twin.digest(0) == Text(PLAIN, [1, 2, 3, 5]).digest(0)
    assert text.digest(0) != twin.digest(0)


def test_whole_blocks_are_hashed_once() -> None:
    calls = 0

    def counting(data: bytes) -> bytes:
        nonlocal calls
        calls += 1
        return sha256(data)

    text = Text(Identity(b"r", b"m", b"l", 4, counting))
    for token in range(64):
        text.append(token)
        if len(text) % 4 == 0:
            text.digest(len(text) // 4 - 1)
    assert calls == 1 + 16
    with pytest.raises(ValueError, match="no prefix of 65"):
        text.prefix_digest(65)
