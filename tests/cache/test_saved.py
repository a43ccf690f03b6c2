"""Saved sequences: every kind of table comes back; nothing damaged or forged does harm."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests import tracers
from torch import Tensor

from kvik.cache import KVCache, PagePool, Sequence, choose_slab, dump, load
from kvik.cache.saved import DIGEST, MAGIC
from kvik.errors import CapacityError, KvikError
from kvik.models import Model
from kvik.plan import kv_bytes, pool_capacity
from kvik.recipe import Recipe
from kvik.testing import models

assert tracers.PerChannel.names  # importing them registered them

PREFIX = len(MAGIC) + DIGEST


def make(model: Model, recipe: str, dirt: int = 0, room: int = 3) -> KVCache:
    """A cache for three sequences of 100 tokens whose free memory holds ``dirt``."""
    plan = Recipe.parse(recipe).resolve(model.spec)
    slab = choose_slab(plan.page_bytes) if plan.page_bytes else 64
    capacity = pool_capacity(plan, 100, slab, room)
    pool = PagePool(plan.page_bytes, capacity, slab_bytes=slab)
    pool.buffer.fill_(dirt)
    return KVCache(plan, pool)


def feed(model: Model, cache: KVCache, sequence: Sequence, tokens: list[int]) -> Tensor:
    cache.plan([sequence], [len(tokens)])
    logits = model.forward(torch.tensor(tokens), cache.positions, cache)
    cache.commit()
    return logits


def forge(header: Any, rest: bytes = b"", size: int | None = None) -> bytes:
    """A file with a valid checksum."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = (len(text) if size is None else size).to_bytes(8, "little") + text + rest
    return MAGIC + hashlib.sha256(body).digest() + body


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(data[PREFIX : PREFIX + 8], "little")
    start = PREFIX + 8 + size
    return json.loads(data[PREFIX + 8 : start]), data[start:]


ROUND_TRIPS = [
    ("grouped", "fp16"),
    ("grouped", "int8/int4+page:7"),
    ("grouped", "sinks:3+window:20+page:4"),
    ("grouped", "perchannel:4,residual=7,raw"),
    ("grouped", "perchannel:8/int8"),
    ("plain", "perchannel:4,residual=7/perchannel:8,residual=0+sinks:2+window:20"),
    ("plain", "heavy:9,every=16"),
    ("plain", "spread:12@0+int8"),
    ("grouped", "heavy:20+int4"),
    ("stateful", "int8"),
    ("latent", "int8+page:16@0"),
    ("plain", "none"),
]


@pytest.mark.parametrize(("model_name", "recipe"), ROUND_TRIPS)
def test_what_was_saved_comes_back(model_name: str, recipe: str) -> None:
    model: Model = getattr(models, model_name)()
    tokens = [(7 * i) % 96 for i in range(60)]
    for length in (0, 1, 41):
        cache = make(model, recipe, dirt=0xAB)
        sequence = cache.create()
        if length and not cache.resolved.recompute:
            feed(model, cache, sequence, tokens[:length])
        data = dump(cache, sequence)
        assert dump(cache, sequence) == data
        other = make(model, recipe, dirt=0x55)
        stranger = other.create()
        if not cache.resolved.recompute:
            feed(model, other, stranger, tokens[::-1][:13])
        back = load(other, data)
        assert back.length == sequence.length
        assert dump(other, back) == data, "also from another place in a dirtier pool"
        assert other.nbytes(back) == cache.nbytes(sequence)
        assert other.nbytes(back) == kv_bytes(cache.resolved, back.length).total
        if not cache.resolved.recompute:
            a = feed(model, cache, sequence, tokens[length:])
            b = feed(model, other, back, tokens[length:])
            assert torch.equal(a, b)
        other.free(back)
        other.free(stranger)
        assert other.pool.stats().used == 0


@pytest.mark.parametrize("recipe", ["int8+page:4", "perchannel:8", "heavy:9,every=16"])
def test_remains_of_other_sequences_are_not_saved(recipe: str) -> None:
    """Two pools with other remains in unused places give the same file."""
    model = models.plain()
    files = []
    for dirt in (0x00, 0xFF):
        cache = make(model, recipe, dirt)
        sequence = cache.create()
        feed(model, cache, sequence, list(range(29)))
        files.append(dump(cache, sequence))
    assert files[0] == files[1]


@pytest.fixture(scope="module")
def small() -> tuple[Model, KVCache, bytes]:
    """A file of about 2 kB: tails, a window and two groups."""
    model = models.grouped()
    cache = make(model, "perchannel:1,residual=3/int8+page:1+window:4@0", room=4)
    sequence = cache.create()
    feed(model, cache, sequence, [1, 2, 3, 4, 5])
    data = dump(cache, sequence)
    cache.free(sequence)
    return model, cache, data


def refused(cache: KVCache, data: bytes, words: str = "saved") -> None:
    """Only KvikError, soon, and without a trace."""
    before, start = cache.pool.stats(), time.perf_counter()
    with pytest.raises(KvikError, match=words):
        load(cache, data)
    assert time.perf_counter() - start < 1
    assert cache.pool.stats() == before


def test_any_flipped_bit_is_noticed(small: tuple[Model, KVCache, bytes]) -> None:
    _, cache, data = small
    chance = np.random.default_rng(0)
    assert len(data) < 20_000
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(chance.integers(8))
        refused(cache, bytes(damaged), "no saved kvik sequence" if at < len(MAGIC) else "damaged")


def test_any_truncation_is_noticed(small: tuple[Model, KVCache, bytes]) -> None:
    _, cache, data = small
    for length in [*range(0, PREFIX + 200), *range(PREFIX + 200, len(data), 37)]:
        refused(cache, data[:length])
    refused(cache, data + b"\0", "damaged")
    refused(cache, b"")
    refused(cache, b"GGUF" + data)


def test_files_of_another_recipe_or_model_are_refused() -> None:
    model = models.plain()
    caches = [make(model, r) for r in ("int8", "int8+page:16", "int4", "int8:group=16", "int8@0")]
    caches += [make(models.grouped(), "int8"), make(models.latent(), "int8")]
    files = [dump(c, c.create()) for c in caches]
    for i, cache in enumerate(caches):
        for j, data in enumerate(files):
            if i == j:
                assert load(cache, data).length == 0
            else:
                refused(cache, data, "another model or recipe")


@pytest.mark.parametrize("recipe", ["fp16+page:4", "int8@0+fp16+page:8@1", "heavy:9,every=16"])
def test_a_pool_that_is_too_small_stays_as_it_was(recipe: str) -> None:
    model = models.plain()
    cache = make(model, recipe)
    sequence = cache.create()
    feed(model, cache, sequence, list(range(40)))
    data = dump(cache, sequence)
    sizes = cache.resolved.page_bytes
    for slabs in range(100):
        slab = choose_slab(sizes)
        tight = KVCache(cache.resolved, PagePool(sizes, slabs * slab, slab_bytes=slab))
        before = tight.pool.stats()
        try:
            back = load(tight, data)
        except CapacityError:
            assert tight.pool.stats() == before
        else:
            assert slabs > 0
            tight.free(back)
            assert tight.pool.stats().used == 0
            break
    else:
        raise AssertionError("never fit")


LENGTHS = [-1, 2**31, 2**62, 10**400, 41.0, "41", None, True, [41], {"41": 41}, float("inf")]
LENGTHS += [float("nan"), 10**9, 2**31 - 2, 10**6, 40, 42, 0]
HOSTILE = ["fp16", "window:8+page:4", "perchannel:8", "heavy:9,every=1", "spread:12", "none"]


@pytest.mark.parametrize("recipe", HOSTILE)
def test_forged_lengths_do_no_harm(recipe: str) -> None:
    """Whatever length a valid file claims: an error at once, or a sequence that adds up."""
    model = models.plain()
    cache = make(model, recipe)
    sequence = cache.create()
    if recipe != "none":
        feed(model, cache, sequence, list(range(41)))
    header, rest = parts(dump(cache, sequence))
    cache.free(sequence)
    for length in LENGTHS:
        for blob in (rest, b"", rest[:-1], rest + b"\0" * 64):
            start = time.perf_counter()
            before = cache.pool.stats()
            try:
                back = load(cache, forge(header | {"length": length}, blob))
            except KvikError:
                assert cache.pool.stats() == before
            else:
                assert type(length) is int
                assert back.length == length
                assert cache.nbytes(back) == kv_bytes(cache.resolved, length).total
                cache.free(back)
            assert time.perf_counter() - start < 1, length


FORGED: dict[str, Callable[[dict[str, Any], bytes], bytes]] = {
    "no keys": lambda h, r: forge({}, r),
    "no length": lambda h, r: forge({"plan": h["plan"]}, r),
    "no plan": lambda h, r: forge({"length": h["length"]}, r),
    "a list": lambda h, r: forge([h["plan"], h["length"]], r),
    "a number": lambda h, r: forge(7, r),
    "null": lambda h, r: forge(None, r),
    "a string": lambda h, r: forge("plan length", r),
    "no json": lambda h, r: forge(b"length=41", r),
    "nothing": lambda h, r: forge(b"", r),
    "not utf-8": lambda h, r: forge(b"\xff\xfe{", r),
    "deep": lambda h, r: forge(b"[" * 4000, r),
    "very deep": lambda h, r: forge(b"[" * 1_000_000, r),
    "deep objects": lambda h, r: forge(b'{"plan":' * 500, r),
    "many digits": lambda h, r: forge(b'{"length": ' + b"9" * 4000 + b"}", r),
    "a long header": lambda h, r: forge(json.dumps(h).encode() + b" " * 5_000_000, r),
    "a header beyond the file": lambda h, r: forge(h, r, size=2**40),
    "a huge header": lambda h, r: forge(h, r, size=2**64 - 1),
    "half a header": lambda h, r: forge(h, r, size=10),
    "more than belongs to it": lambda h, r: forge(h, r + b"\0" * 64),
    "less than belongs to it": lambda h, r: forge(h, r[:-1]),
    "another plan": lambda h, r: forge({**h, "plan": "0" * 64}, r),
    "a plan that is no text": lambda h, r: forge({**h, "plan": [h["plan"]]}, r),
    "only a size": lambda h, r: MAGIC + hashlib.sha256(b"\1").digest() + b"\1",
    "no size": lambda h, r: MAGIC + hashlib.sha256(b"").digest(),
}


@pytest.mark.parametrize("what", FORGED)
def test_forged_headers_do_no_harm(what: str, small: tuple[Model, KVCache, bytes]) -> None:
    _, cache, data = small
    refused(cache, FORGED[what](*parts(data)))


def test_forged_positions_are_refused() -> None:
    model = models.plain()
    cache = make(model, "heavy:9,every=16")
    sequence = cache.create()
    feed(model, cache, sequence, list(range(41)))
    header, rest = parts(dump(cache, sequence))
    cache.free(sequence)
    policy = cache.resolved.groups[0].evicting
    assert policy is not None
    count = policy.stored(41, 0, 0)
    good = np.frombuffer(rest[: 4 * count], np.int32)
    for change in (good[::-1], good * 0, good - 1000, good + 41, np.minimum(good, good[-2])):
        forged = forge(header, change.astype(np.int32).tobytes() + rest[4 * count :])
        refused(cache, forged, "impossible positions")


def test_an_interrupt_while_loading_leaks_nothing(
    small: tuple[Model, KVCache, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cache, data = small
    real, calls = cache.pool.alloc, []

    def alloc(nbytes: int, count: int) -> Any:
        calls.append(count)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(nbytes, count)

    monkeypatch.setattr(cache.pool, "alloc", alloc)
    with pytest.raises(KeyboardInterrupt):
        load(cache, data)
    assert cache.pool.stats().used == 0
