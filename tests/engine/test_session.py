"""Sessions: any cut, forks, marks, trims, interrupts and limits."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tests import tracers
from tests.engine.interrupting import interrupted_at
from torch import Tensor

from kvik.engine.session import Session, check_fits
from kvik.errors import CapacityError, KvikError, RecipeError
from kvik.models import Model
from kvik.recipe import Recipe
from kvik.testing import models

assert tracers.PerChannel.names  # importing them registered them

TOKENS = random.Random(3).choices(range(96), k=200)
KINDS: list[tuple[Callable[[], Model], str]] = [
    (models.grouped, "fp16"),
    (models.grouped, "int8/int4+page:7"),
    (models.plain, "window:9+page:4"),
    (models.plain, "sinks:3+window:20+page:4"),
    (models.grouped, "perchannel:4,residual=7,raw+page:8"),
    (models.plain, "heavy:9,every=16"),
    (models.grouped, "spread:12"),
    (models.stateful, "int8"),
    (models.latent, "int8"),
    (models.plain, "none"),
]
kinds = pytest.mark.parametrize(("make", "recipe"), KINDS, ids=lambda x: getattr(x, "__name__", x))


def near(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


def start(make: Callable[[], Model], recipe: str, **more: Any) -> Session:
    return Session(make(), recipe, max_tokens=more.pop("max_tokens", 200), **more)


def plain_logits(make: Callable[[], Model], recipe: str, tokens: list[int]) -> Tensor:
    """All logits from one uninterrupted feed."""
    return start(make, recipe).feed(tokens, logits="all", chunk=1000)


@kinds
def test_any_chunking_gives_the_same(make: Callable[[], Model], recipe: str) -> None:
    tokens = TOKENS[:70]
    want = plain_logits(make, recipe, tokens)
    assert want.shape == (70, 96)
    assert want.dtype == torch.float32
    for chunk in (7, 64):
        session = start(make, recipe)
        near(session.feed(tokens, logits="all", chunk=chunk), want)
        assert session.tokens == tokens
    near(start(make, recipe).feed(tokens, chunk=64), want[-1:])
    session, chance, at = start(make, recipe), random.Random(1), 0
    while at < 70:
        n = min(chance.choice((1, 2, 5, 30)), 70 - at)
        near(
            session.feed(tokens[at : at + n], chunk=chance.choice((1, 3, 512))),
            want[at + n - 1][None],
        )
        at += n
        assert session.kv_bytes == session.planned_bytes(at)
    session.close()
    assert session.cache.pool.stats().used == 0


@kinds
def test_forks_share_a_past_and_nothing_else(make: Callable[[], Model], recipe: str) -> None:
    tokens, other = TOKENS[:70], TOKENS[100:140]
    session = start(make, recipe)
    session.feed(tokens[:41])
    twin = session.fork()
    assert twin.tokens == session.tokens
    assert twin.kv_bytes == session.kv_bytes
    used = session.cache.pool.stats().used
    assert twin.cache.pool.stats().used == used, "a fork costs no page"
    want = plain_logits(make, recipe, tokens[:41] + other)
    near(twin.feed(other, logits="all"), want[41:])
    near(session.feed(tokens[41:], logits="all"), plain_logits(make, recipe, tokens)[41:])
    assert session.tokens == tokens
    assert twin.tokens == tokens[:41] + other
    session.close()
    near(twin.feed([5]), plain_logits(make, recipe, tokens[:41] + other + [5])[-1:])
    twin.close()
    assert twin.cache.pool.stats().used == 0


@kinds
def test_trimming_equals_never_having_gone_on(make: Callable[[], Model], recipe: str) -> None:
    tokens = TOKENS[:60]
    for length in (60, 59, 55, 32, 17, 0):
        session = start(make, recipe)
        session.feed(tokens)
        recomputed = session.trim(length)
        assert 0 <= recomputed <= length
        assert session.tokens == tokens[:length]
        assert session.kv_bytes == session.planned_bytes(length)
        more = [9, 8, 7]
        near(session.feed(more), plain_logits(make, recipe, tokens[:length] + more)[-1:])
        session.close()
        assert session.cache.pool.stats().used == 0


@pytest.mark.parametrize(
    ("recipe", "fed", "exact"),
    [
        ("fp16", 60, {0, 1, 31, 45, 58, 60}),
        ("int8/int4+page:7", 60, {0, 1, 31, 45, 58, 60}),
        ("none", 60, {0, 1, 31, 45, 58, 60}),
        ("window:20+page:4", 62, {59, 60, 61, 62}),  # page 10, of tokens 40 to 43, is still there
        ("sinks:3+window:20+page:4", 62, {59, 60, 61, 62}),
        ("perchannel:8,residual=4", 63, {60, 61, 62, 63}),  # 56 tokens are closed at all of these
        ("heavy:9,every=16", 60, {60}),
    ],
)
def test_trims_that_need_no_recomputing(recipe: str, fed: int, exact: set[int]) -> None:
    for length in exact | {58, 45}:
        session = start(models.plain, recipe)
        session.feed(TOKENS[:fed])
        recomputed = session.trim(length)
        assert (recomputed == 0) == (length in exact), length
        near(session.feed([5]), plain_logits(models.plain, recipe, [*TOKENS[:length], 5])[-1:])


def test_a_trim_without_marks_recomputes_all() -> None:
    session = start(models.plain, "window:9")
    session.feed(TOKENS[:150])
    assert session.trim(50) == 50
    session = start(models.plain, "heavy:9,every=16")
    session.feed(TOKENS[:60])
    assert session.trim(40) == 40
    assert session.trim(0) == 0


@kinds
def test_marks_bring_trims_back_for_nothing(make: Callable[[], Model], recipe: str) -> None:
    tokens = TOKENS[:90]
    session = start(make, recipe, max_marks=2)
    for stop in (20, 47, 90):
        session.feed(tokens[len(session.tokens) : stop])
        if stop < 90:
            session.mark()
    again = plain_logits(make, recipe, tokens)
    assert session.trim(47) == 0, "exactly at a mark"
    near(session.feed(tokens[47:60], logits="all"), again[47:60])
    assert session.trim(50) <= 3, "no further back than the newest mark below"
    near(session.feed(tokens[50:60], logits="all"), again[50:60])
    assert session.trim(47) == 0, "a mark serves more than once"
    assert session.trim(30) <= 10, "marks beyond the new end are gone"
    near(session.feed(tokens[30:60], logits="all"), again[30:60])
    assert session.trim(20) == 0
    session.close()
    assert session.cache.pool.stats().used == 0


MANY = ["fp16+page:4", "window:9+page:4", "heavy:9,every=16", "perchannel:4,residual=7+page:4"]


@pytest.mark.parametrize("recipe", MANY)
def test_marks_have_room_of_their_own(recipe: str) -> None:
    """As many as were asked for fit beside a full session and its forks; one more is refused."""
    session = start(models.plain, recipe, max_tokens=100, max_marks=7)
    session.feed(TOKENS[:13])
    twin = session.fork()
    for i in range(3):
        session.mark()
        twin.mark()
        session.feed(TOKENS[13 + 17 * i :][:17])
        twin.feed(TOKENS[50 + 17 * i :][:17])
    session.mark()
    used = session.cache.pool.stats()
    for each in (session, twin):
        with pytest.raises(CapacityError, match="larger max_marks"):
            each.mark()
    assert session.cache.pool.stats() == used
    for each in (session, twin):
        each.feed(TOKENS[100:136])
    session.trim(40)
    session.mark()
    for each in (session, twin):
        each.close()
    assert session.cache.pool.stats().used == 0


def test_marks_are_counted_in_bytes() -> None:
    session = start(models.plain, "window:9+page:4", max_forks=4)
    session.feed(TOKENS[:40])
    alone = session.kv_bytes
    session.mark()
    assert session.kv_bytes - alone == session.planned_bytes(40) - session.cache.pool.stats().used
    session.feed(TOKENS[40:80])
    assert session.kv_bytes == session.planned_bytes(80) + session.planned_bytes(40)


def test_lengths_that_are_none_are_refused() -> None:
    session = start(models.plain, "fp16")
    session.feed(TOKENS[:10])
    for length in (-1, 11):
        with pytest.raises(KvikError, match=f"cannot go back to {length} of 10 tokens"):
            session.trim(length)
    assert session.tokens == TOKENS[:10]


@dataclass
class Interrupting:
    """A model whose user presses Ctrl-C in the middle of a chosen forward pass."""

    model: Model
    at: int
    kind: type[BaseException] = KeyboardInterrupt
    calls: int = field(default=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, tokens: Tensor, positions: Tensor, cache: Any, rows: Any = None) -> Tensor:
        self.calls += 1
        return self.model.forward(tokens, positions, _Tripped(cache, self), rows)


class _Tripped:
    """The cache as the model sees it; trips in the last layer's attention."""

    def __init__(self, cache: Any, user: Interrupting) -> None:
        self._cache, self._user = cache, user

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def attend(self, layer: int, *args: Any) -> Any:
        result = self._cache.attend(layer, *args)
        last = len(self._user.model.spec.layers) - 1
        if layer == last and self._user.calls == self._user.at:
            raise self._user.kind
        return result


@kinds
@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_leaves_a_session_that_goes_on(
    make: Callable[[], Model], recipe: str, kind: type[BaseException]
) -> None:
    tokens = TOKENS[:60]
    want = plain_logits(make, recipe, tokens)
    for at in (1,) if recipe == "none" else (1, 3):
        user: Any = Interrupting(make(), at, kind)
        session = Session(user, recipe, max_tokens=200)
        with pytest.raises(kind):
            session.feed(tokens[:50], chunk=13)
        done = 13 * (at - 1)
        assert session.tokens == tokens[:done], "whole chunks only"
        assert session.kv_bytes == session.planned_bytes(done)
        near(session.feed(tokens[done:], logits="all"), want[done:])
        session.close()
        assert session.cache.pool.stats().used == 0


def test_none_keeps_nothing_and_says_the_same() -> None:
    session = start(models.plain, "none")
    full = start(models.plain, "fp32")
    for token in TOKENS[:12]:
        near(session.feed([token]), full.feed([token]))
        assert session.kv_bytes == session.planned_bytes(len(session.tokens)) == 0
    assert session.cache.pool.stats().used == 0
    twin = session.fork()
    near(twin.feed([3, 4], logits="all"), full.fork().feed([3, 4], logits="all"))
    assert session.tokens == TOKENS[:12]


def test_recipes_can_be_text_or_objects() -> None:
    recipe = Recipe.parse("int8+window:9")
    a, b = start(models.plain, "window:9+int8"), Session(models.plain(), recipe, max_tokens=50)
    assert a.recipe == b.recipe == recipe
    assert torch.equal(a.feed(TOKENS[:9]), b.feed(TOKENS[:9]))


def test_a_session_has_an_end() -> None:
    session = start(models.plain, "fp16", max_tokens=10)
    session.feed(TOKENS[:8])
    with pytest.raises(CapacityError, match="11 tokens asked of a session for 10"):
        session.feed(TOKENS[8:11])
    assert session.tokens == TOKENS[:8], "nothing was fed"
    session.feed(TOKENS[8:10])
    with pytest.raises(CapacityError):
        session.feed([1])


def test_nothing_to_feed_and_no_room_are_refused() -> None:
    session = start(models.plain, "fp16")
    with pytest.raises(KvikError, match="no tokens"):
        session.feed([])
    for room in (0, -5):
        with pytest.raises(KvikError, match="at least one token"):
            start(models.plain, "fp16", max_tokens=room)
    with pytest.raises(RecipeError):
        start(models.plain, "int8+int4")


def test_too_many_forks_are_a_clear_error() -> None:
    """The pool is for one fork; with more the writer is told, and the others stay whole."""
    session = start(models.plain, "fp32+page:4", max_tokens=40, max_marks=0)
    session.feed(TOKENS[:40])
    twins = [session.fork() for _ in range(4)]
    for twin in twins:
        twin.trim(1)
    twins[0].feed(TOKENS[50:89])
    for twin in twins[1:]:
        with pytest.raises(CapacityError, match="KV pool is full"):
            twin.feed(TOKENS[50:89])
        assert twin.tokens == TOKENS[:1]
        assert twin.kv_bytes == twin.planned_bytes(1)
    assert session.kv_bytes == session.planned_bytes(40)
    for each in (session, *twins):
        each.close()
    assert session.cache.pool.stats().used == 0


def test_closing_twice_is_closing() -> None:
    session = start(models.grouped, "sinks:3+window:20")
    session.feed(TOKENS[:50])
    session.mark()
    session.close()
    session.close()
    assert session.cache.pool.stats().used == 0
    assert session.tokens == []
    near(
        session.feed(TOKENS[:5]), plain_logits(models.grouped, "sinks:3+window:20", TOKENS[:5])[-1:]
    )


def test_a_cache_that_cannot_fit_is_refused_before_it_starts() -> None:
    plan = Recipe.parse("fp32").resolve(models.plain().spec)
    check_fits(plan, 1000, available=10**9)
    with pytest.raises(CapacityError, match="needs 1,048,832 bytes and 1,000 are"):
        check_fits(plan, 1000, available=1000)
    with pytest.raises(CapacityError, match="less context or a smaller recipe"):
        start(models.plain, "fp32", max_tokens=10**12)


WINDOWS = ["window:64", "sinks:4+window:60", "sinks:4+window:60+int8/int4+page:16"]
WINDOWS += ["perchannel:8,residual=16+window:64+page:16"]


def stream(recipe: str, total: int) -> None:
    """Feeds ``total`` tokens piece by piece; bytes and memory stay constant."""
    session = start(models.plain, recipe, max_tokens=total)
    chance = random.Random(0)
    fed, most, late = 0, 0, set()
    while fed < total:
        n = min(chance.choice((1, 7, 64, 64)), total - fed)
        session.feed([chance.randrange(96) for _ in range(n)])
        fed += n
        most = max(most, session.kv_bytes)
        if fed > total // 2:
            late.add(session.kv_bytes)
        assert session.kv_bytes == session.planned_bytes(fed)
    bound = max(session.planned_bytes(n) for n in range(64, 1000))
    assert most <= bound
    assert max(late) <= bound
    assert session.cache.pool.nbytes <= 40 * bound
    session.close()


@pytest.mark.parametrize("recipe", WINDOWS)
def test_windows_hold_constant_memory(recipe: str) -> None:
    stream(recipe, 3000)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", WINDOWS)
def test_windows_hold_constant_memory_over_20000_tokens(recipe: str) -> None:
    stream(recipe, 20_000)


@pytest.mark.parametrize(
    "recipe", ["fp16", "heavy:9,every=16", "perchannel:4,residual=7", "window:9+page:4"]
)
def test_an_interrupt_while_pages_are_given_out_leaks_none(
    recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nth in range(1, 8):
        session = start(models.grouped, recipe)
        session.feed(TOKENS[:40])
        used, real, calls = session.cache.pool.stats().used, session.cache.pool.alloc, []

        def alloc(
            nbytes: int, count: int, *, nth: int = nth, calls: list[int] = calls, real: Any = real
        ) -> Any:
            calls.append(count)
            if len(calls) == nth:
                raise KeyboardInterrupt
            return real(nbytes, count)

        monkeypatch.setattr(session.cache.pool, "alloc", alloc)
        with contextlib.suppress(KeyboardInterrupt):
            session.feed(TOKENS[40:90])
        if len(calls) < nth:
            return
        assert session.cache.pool.stats().used == used
        assert session.tokens == TOKENS[:40]
        session.feed(TOKENS[40:90])
        assert session.kv_bytes == session.planned_bytes(90)
    raise AssertionError("no recipe asks for pages so often")


def test_interrupts_at_any_line_keep_tokens_and_cache_together() -> None:
    """Ctrl-C anywhere in a feed: ``tokens`` says what the cache holds; no page is lost."""
    model, chance, hits = models.grouped(), random.Random(2), 0
    session = Session(model, "int8+sinks:2+window:9+page:4", max_tokens=90)
    text = [chance.randrange(90) for _ in range(90)]
    while len(session.tokens) < 90:
        rest = text[len(session.tokens) :][: chance.randrange(1, 12)]
        line = chance.choice((0, chance.randrange(1, 400), chance.randrange(1, 3000)))
        try:
            interrupted_at(line, lambda: session.feed(rest, chunk=5), outside="feed")  # noqa: B023
        except KeyboardInterrupt:
            hits += 1
        assert session.tokens == text[: len(session.tokens)]
        assert session._sequence.length == len(session.tokens)
        assert session.kv_bytes == session.planned_bytes(len(session.tokens))
    assert hits > 5
    session.close()
    assert session.cache.pool.stats().used == 0
