"""The prefix cache: a hit is worth what a run from the start is, and never anyone else's."""

from __future__ import annotations

import random

import pytest
from tests.engine.prefix_runner import Make, Runner, near, solo

from kvik.engine.identity import sha256
from kvik.testing import models

CHANCE = random.Random(3)
TOKENS = CHANCE.choices(range(96), k=100)
OTHER = CHANCE.choices(range(96), k=100)
CUTTABLE: list[tuple[Make, str]] = [
    (models.plain, "fp16"),
    (models.plain, "int8/int4+page:7"),
    (models.latent, "int8+page:8"),
    (models.plain, "int8@0+page:16@0+page:8@1"),
]
CHECKPOINTS: list[tuple[Make, str]] = [
    (models.grouped, "fp16"),
    (models.plain, "window:9+page:4"),
    (models.plain, "sinks:3+window:20+page:4"),
    (models.plain, "perchannel:4,residual=7+page:8"),
    (models.grouped, "perchannel:4,residual=7,raw+page:8"),
    (models.plain, "heavy:9,every=16"),
    (models.grouped, "spread:12"),
    (models.stateful, "int8"),
]


def kinds(*which: tuple[Make, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("make", "recipe"), which, ids=lambda x: getattr(x, "__name__", x)
    )


@kinds(*CUTTABLE, *CHECKPOINTS)
def test_a_hit_goes_on_as_a_solo_run_does(make: Make, recipe: str) -> None:
    runner = Runner(make, recipe, sequences=14)
    cuttable = (make, recipe) in CUTTABLE
    assert runner.prefix.cuttable == cuttable
    stops = (20, 41, 64, 70)
    hit, logits, first = runner.run(TOKENS[:70], stops)
    assert hit == 0
    near(logits, solo(make, recipe, tuple(TOKENS[:70])))
    running = [first]
    for common in (0, 1, 20, 33, 41, 45, 64, 65, 69, 70, 70):
        tokens = TOKENS[:common] + OTHER[: 3 + common % 5]
        hit, logits, sequence = runner.run(tokens, [len(tokens)])
        running.append(sequence)
        near(logits, solo(make, recipe, tuple(tokens))[hit:])
        runner.check_books(*running)
        assert hit >= max([0, *(s for s in stops if s <= common)])
        if cuttable:
            assert hit >= common
    near(runner.feed(first, OTHER[:9]), solo(make, recipe, tuple(TOKENS[:70] + OTHER[:9]))[70:])
    runner.close(*running)


@kinds(*CUTTABLE, *CHECKPOINTS)
def test_what_is_stored_outlives_the_run_that_stored_it(make: Make, recipe: str) -> None:
    runner = Runner(make, recipe)
    for _ in range(3):
        hit, logits, sequence = runner.run(TOKENS[:70], (33, 64))
        near(logits, solo(make, recipe, tuple(TOKENS[:70]))[hit:])
        runner.cache.free(sequence)
        runner.check_books()
    assert hit == 64
    stats = runner.prefix.stats()
    assert (stats.hits, stats.hit_tokens, stats.misses) == (2, 128, 1)
    runner.close()


@pytest.mark.parametrize("length", [32, 64, 96])
def test_the_same_prompt_computes_its_last_token_alone(length: int) -> None:
    runner = Runner(models.plain, "int8")
    tokens = TOKENS[:length]
    want = solo(models.plain, "int8", tuple(tokens))
    running = []
    for turn in range(3):
        hit, logits, sequence = runner.run(tokens, [length])
        running.append(sequence)
        assert hit == (length - 1 if turn else 0)
        near(logits, want[hit:])
        assert runner.prefix.stats().pages == length // 32, "it is stored once"
    runner.close(*running)


def test_two_equal_prompts_at_once_keep_their_own_pages() -> None:
    runner = Runner(models.plain, "int8+page:8")
    first, second = runner.cache.create(), runner.cache.create()
    texts = [runner.prefix.text(TOKENS[:20]) for _ in range(2)]
    for sequence, text in zip((first, second), texts, strict=True):
        runner.feed(sequence, TOKENS[:20])
        before = sequence.state
        runner.prefix.insert(text, sequence)
        assert sequence.state is before
    assert runner.prefix.stats().pages == 3
    for sequence in (first, second):
        near(
            runner.feed(sequence, OTHER[:9]),
            solo(models.plain, "int8+page:8", tuple(TOKENS[:20] + OTHER[:9]))[20:],
        )
    runner.close(first, second)


def test_many_requests_store_a_common_prefix_once() -> None:
    runner = Runner(models.plain, "int8")
    alone = Runner(models.plain, "int8")
    alone.run(TOKENS[:64], [64])
    running, computed = [], 0
    for index in range(16):
        _, logits, sequence = runner.run([*TOKENS[:64], index], [64])
        running.append(sequence)
        computed += len(logits)
    assert computed == 65 + 15
    assert runner.prefix.stats().bytes == alone.prefix.stats().bytes
    pages = runner.cache.resolved.groups[0].main.nbytes
    assert runner.pool.stats().used == (2 + 16) * pages
    runner.close(*running)


@kinds(*CUTTABLE, *CHECKPOINTS)
def test_storing_again_changes_nothing(make: Make, recipe: str) -> None:
    runner = Runner(make, recipe)
    text = runner.prefix.text(TOKENS[:50])
    sequence = runner.cache.create()
    runner.feed(sequence, TOKENS[:45])
    runner.prefix.insert(text, sequence)
    before = runner.prefix.stats()
    for again in (text, text.fork(), runner.prefix.text(TOKENS[:45])):
        runner.prefix.insert(again, sequence)
        assert runner.prefix.stats() == before
    runner.check_books(sequence)
    runner.close(sequence)


def test_a_whole_block_takes_the_place_of_its_parts() -> None:
    runner = Runner(models.plain, "int8+page:8")
    text, sequence = runner.prefix.text(TOKENS[:24]), runner.cache.create()
    for length in range(1, 25):
        runner.feed(sequence, TOKENS[length - 1 : length])
        runner.prefix.insert(text, sequence)
        assert runner.prefix.stats().entries == -(-length // 8)
        runner.check_books(sequence)
    runner.close(sequence)


def test_checkpoints_in_between_leave_the_later_ones_right() -> None:
    """An entry put between two others must not change what the deeper one stands for."""
    recipe = "sinks:3+window:20+page:4"
    runner = Runner(models.plain, recipe)
    _, _, long = runner.run(TOKENS[:60], [60])
    running = [long]
    for stop in (41, 13, 50, 22, 59):
        sequence = runner.cache.create()
        runner.feed(sequence, TOKENS[:stop])
        runner.prefix.insert(runner.prefix.text(TOKENS[:stop]), sequence)
        running.append(sequence)
        runner.check_books(*running)
        for entry in runner.prefix.entries():
            tokens = TOKENS[: entry.length]
            assert runner.prefix.text_of(entry).ids == tokens
            copy = runner.cache.restore(runner.prefix.state_of(entry))
            want = solo(models.plain, recipe, (*tokens, *OTHER[:9]))[entry.length :]
            near(runner.feed(copy, OTHER[:9]), want)
            runner.cache.free(copy)
    assert runner.prefix.stats().entries == 6
    runner.close(*running)


def test_a_part_of_an_inherited_page_is_never_taken_for_the_whole() -> None:
    """A cut sequence shares full pages with a longer one; a third has only part of such a page."""
    recipe = "window:64+page:8"
    runner = Runner(models.plain, recipe)
    long = runner.cache.create()
    runner.feed(long, TOKENS[:30])
    short = runner.cache.fork(long)
    runner.cache.cut(short, 18)
    runner.prefix.insert(runner.prefix.text(TOKENS[:18]), short)
    runner.prefix.insert(runner.prefix.text(TOKENS[:30]), long)
    between = runner.cache.create()
    runner.feed(between, TOKENS[:20])
    runner.prefix.insert(runner.prefix.text(TOKENS[:20]), between)
    hit, logits, last = runner.run(TOKENS[:30] + OTHER[:9])
    assert hit == 30
    near(logits, solo(models.plain, recipe, tuple(TOKENS[:30] + OTHER[:9]))[30:])
    runner.close(long, short, between, last)


# What must not be shared


def constant(data: bytes) -> bytes:
    return bytes(32)


@kinds((models.plain, "int8+page:8"), (models.plain, "window:9+page:4"))
def test_a_digest_collision_is_a_miss(make: Make, recipe: str) -> None:
    runner = Runner(make, recipe, digest=constant)
    _, _, first = runner.run(TOKENS[:24], [24])
    running = [first]
    for tokens in (OTHER[:24], [TOKENS[0] + 1, *TOKENS[1:24]], TOKENS[1:25]):
        hit, logits, sequence = runner.run(tokens, [20, 24])
        running.append(sequence)
        assert hit == 0
        near(logits, solo(make, recipe, tuple(tokens)))
    hit, _, again = runner.run(TOKENS[:40])
    assert hit > 0, "the first text keeps its place"
    running.append(again)
    for domain in ("a", "b"):
        hit, _, sequence = runner.run(TOKENS[:24], [24], domain=domain)
        running.append(sequence)
        assert hit == 0
    runner.check_books(*running)
    runner.close(*running)


def test_weak_digests_cost_hits_and_nothing_else() -> None:
    runner = Runner(models.plain, "int8+page:4", digest=lambda data: sha256(data)[:1] * 32)
    chance, stems = random.Random(5), [TOKENS[:30], OTHER[:30]]
    hits = 0
    for _ in range(40):
        tokens = chance.choice(stems)[: chance.randrange(1, 30)] + chance.choices(range(3), k=6)
        hit, logits, sequence = runner.run(tokens, [len(tokens)])
        near(logits, solo(models.plain, "int8+page:4", tuple(tokens))[hit:])
        runner.cache.free(sequence)
        hits += hit
    assert hits > 200
    runner.close()


def test_domains_share_nothing() -> None:
    runner = Runner(models.plain, "int8+page:8")
    _, _, first = runner.run(TOKENS[:30], [30], domain="a")
    hit, _, second = runner.run(TOKENS[:30], [30], domain="b")
    assert hit == 0
    assert not set(first.state.pages().tolist()) & set(second.state.pages().tolist())
    hits = [runner.run(TOKENS[:30], domain=domain)[0] for domain in ("a", "b", "", "ab")]
    assert hits == [29, 29, 0, 0]


@kinds((models.plain, "int8+page:8"), (models.plain, "heavy:9,every=16"))
def test_other_marks_make_another_prefix_from_the_first_of_them_on(make: Make, recipe: str) -> None:
    runner = Runner(make, recipe)
    runner.run(TOKENS[:30], [10, 30], marks=[12, 29])
    cuttable = runner.prefix.cuttable

    def hit(*marks: int) -> int:
        return runner.prefix.match(runner.prefix.text(TOKENS[:40], marks), 39).length

    assert hit(12, 29) == hit(12, 29, 30, 39) == 30
    assert hit(12) == (29 if cuttable else 10)
    assert hit() == hit(29) == (12 if cuttable else 10)
    assert hit(5, 12, 29) == (5 if cuttable else 0)


def test_a_text_of_another_model_or_recipe_is_refused() -> None:
    runner = Runner(models.plain, "int8")
    others = [
        Runner(models.plain, "int4").prefix,
        Runner(models.latent, "int8").prefix,
        Runner(models.plain, "int8+page:8").prefix,
    ]
    sequence = runner.cache.create()
    runner.feed(sequence, TOKENS[:40])
    mine = runner.prefix.text(TOKENS[:40])
    runner.prefix.insert(mine, sequence)
    for other in others:
        text = other.text(TOKENS[:40])
        assert all(text.digest(i) != mine.digest(0) for i in range(40 // other.block))
        with pytest.raises(ValueError, match="another model or recipe"):
            runner.prefix.match(text, 39)
        with pytest.raises(ValueError, match="another model or recipe"):
            runner.prefix.insert(text, sequence)
    runner.close(sequence)


def test_limits_are_kept() -> None:
    runner = Runner(models.plain, "int8+page:8")
    runner.run(TOKENS[:30], [30])
    text = runner.prefix.text(TOKENS[:40])
    assert [runner.prefix.match(text, n).length for n in range(41)] == [
        min(n, 30) for n in range(41)
    ]
    windowed = Runner(models.plain, "window:9+page:4")
    windowed.run(TOKENS[:30], [10, 30])
    lengths = [
        windowed.prefix.match(windowed.prefix.text(TOKENS[:40]), n).length for n in range(41)
    ]
    assert all(length <= n for n, length in enumerate(lengths))
    assert lengths[10:28] == [10] * 18, "what the window has left behind cannot be had back"
    assert lengths[28:] == [28, 29, *[30] * 11], "a page that is still there can"


def test_a_sequence_longer_than_its_text_is_a_mistake() -> None:
    runner = Runner(models.plain, "int8")
    sequence = runner.cache.create()
    runner.feed(sequence, TOKENS[:40])
    with pytest.raises(ValueError, match="40 tokens has a text of 30"):
        runner.prefix.insert(runner.prefix.text(TOKENS[:30]), sequence)


def test_without_a_cache_there_is_nothing_to_share() -> None:
    runner = Runner(models.plain, "none")
    sequence = runner.cache.create()
    runner.prefix.insert(runner.prefix.text(TOKENS[:30]), sequence)
    assert runner.prefix.match(runner.prefix.text(TOKENS[:30]), 29).length == 0
    assert runner.prefix.stats().entries == 0


def test_an_entry_can_be_carried_to_another_cache() -> None:
    source, target = Runner(models.plain, "int8+page:8"), Runner(models.plain, "int8+page:8")
    source.run(TOKENS[:30], [30], marks=[7], domain="d")
    deepest = max(source.prefix.entries(), key=lambda e: e.length)
    text = source.prefix.text_of(deepest)
    assert (text.ids, text.marks, text.domain) == (TOKENS[:30], {7}, "d")
    sequence = target.cache.create()
    target.feed(sequence, text.ids)
    target.prefix.insert(text, sequence)
    assert {e.digest for e in target.prefix.entries()} == {
        e.digest for e in source.prefix.entries()
    }
