"""Saved sequences: every kind of table comes back; nothing damaged or forged does harm."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests import tracers
from torch import Tensor

from kvik.cache import KVCache, PagePool, Saved, choose_slab, saved
from kvik.cache import Sequence as Cached
from kvik.cache.container import MAGIC, MAX_HEADER, PREFIX, SEAL, VERSION
from kvik.errors import CapacityError, KvikError
from kvik.models import Model, random_model
from kvik.plan import kv_bytes, pool_capacity
from kvik.recipe import Recipe
from kvik.testing import models

assert tracers.PerChannel.names  # importing them registered them

ID = bytes(range(32))


def dump(cache: KVCache, sequence: Cached, **more: Any) -> bytes:
    """A file of tokens 0, 1, 2 ... unless ``ids`` says otherwise."""
    return saved.dump(cache, sequence, **({"ids": range(sequence.length), "identity": ID} | more))


def restore(cache: KVCache, data: bytes) -> Saved:
    return saved.load(cache, data, identity=ID)


def load(cache: KVCache, data: bytes) -> Cached:
    return restore(cache, data).sequence


def make(model: Model, recipe: str, dirt: int = 0, room: int = 3) -> KVCache:
    """A cache for three sequences of 100 tokens whose free memory holds ``dirt``."""
    plan = Recipe.parse(recipe).resolve(model.spec)
    slab = choose_slab(plan.page_bytes)
    capacity = pool_capacity(plan, 100, slab, room)
    pool = PagePool(plan.page_bytes, capacity, slab_bytes=slab)
    pool.buffer.fill_(dirt)
    return KVCache(plan, pool)


def feed(model: Model, cache: KVCache, sequence: Cached, tokens: list[int]) -> Tensor:
    cache.plan([sequence], [len(tokens)])
    logits = model.forward(torch.tensor(tokens), cache.positions, cache)
    cache.commit()
    return logits


def forge(
    header: Any, rest: Sequence[bytes] = (), size: int | None = None, version: int = VERSION
) -> bytes:
    """A file with valid seals: the header, then sections."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    data = PREFIX.pack(MAGIC, version, len(text) if size is None else size) + text
    data += hashlib.sha256(data).digest()
    for section in rest:
        data += section
        data += hashlib.sha256(data).digest()
    return data


def parts(data: bytes) -> tuple[dict[str, Any], tuple[bytes, bytes]]:
    """Header, tables and pages of a file; the pages begin where the second seal ends."""
    size = PREFIX.unpack(data[: PREFIX.size])[2]
    header, at = json.loads(data[PREFIX.size : PREFIX.size + size]), PREFIX.size + size + SEAL
    for end in range(at, len(data) - SEAL + 1):
        if data[end : end + SEAL] == hashlib.sha256(data[:end]).digest():
            return header, (data[at:end], data[end + SEAL : -SEAL])
    raise AssertionError("no second seal")


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
        refused(cache, bytes(damaged), "no saved kvik sequence" if at < len(MAGIC) else "saved")


def test_any_truncation_is_noticed(small: tuple[Model, KVCache, bytes]) -> None:
    _, cache, data = small
    for length in range(len(data)):
        refused(cache, data[:length], "saved kvik" if length < PREFIX.size else "cut short")
    refused(cache, data + b"\0", "belong to nothing")
    refused(cache, b"")
    refused(cache, b"GGUF" + data)


def test_files_of_another_recipe_or_model_are_refused() -> None:
    recipes = ("int8", "int8+page:16", "int4", "int8:group=16", "int8@0")
    pairs = [(models.plain(), recipe) for recipe in recipes]
    pairs += [(models.grouped(), "int8"), (models.latent(), "int8")]
    caches = [make(*pair) for pair in pairs]
    files = [
        dump(c, c.create(), identity=model.identity)
        for c, (model, _) in zip(caches, pairs, strict=True)
    ]
    for cache, (model, recipe) in zip(caches, pairs, strict=True):
        for data, (maker, saved_by) in zip(files, pairs, strict=True):
            if model is maker and recipe == saved_by:
                assert saved.load(cache, data, identity=model.identity).ids == ()
                continue
            what = "model" if recipe == saved_by else "recipe"
            with pytest.raises(KvikError, match=f"belongs to another {what}"):
                saved.load(cache, data, identity=model.identity)


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
    header, (tables, pages) = parts(dump(cache, sequence))
    cache.free(sequence)
    claims = [{"length": n} for n in LENGTHS] + [{"ids": n} for n in LENGTHS]
    claims += [{"length": n, "ids": n} for n in LENGTHS] + [{"marks": n} for n in LENGTHS]
    for claim in claims:
        for rest in ((tables, pages), (), (tables,), (tables[:-1], pages), (tables + pages, b"")):
            start = time.perf_counter()
            before = cache.pool.stats()
            try:
                back = restore(cache, forge(header | claim, rest))
            except KvikError:
                assert cache.pool.stats() == before
            else:
                assert all(type(n) is int for n in claim.values())
                assert len(back.ids) == {**header, **claim}["ids"]
                length = back.sequence.length
                assert cache.nbytes(back.sequence) == kv_bytes(cache.resolved, length).total
                cache.free(back.sequence)
            assert time.perf_counter() - start < 1, claim


Forged = Callable[[dict[str, Any], tuple[bytes, bytes]], bytes]
FORGED: dict[str, Forged] = {
    "no keys": lambda h, r: forge({}, r),
    "no length": lambda h, r: forge({k: v for k, v in h.items() if k != "length"}, r),
    "one key more": lambda h, r: forge({**h, "more": 1}, r),
    "a list": lambda h, r: forge([h], r),
    "a number": lambda h, r: forge(7, r),
    "null": lambda h, r: forge(None, r),
    "a string": lambda h, r: forge("ids length", r),
    "no json": lambda h, r: forge(b"length=41", r),
    "nothing": lambda h, r: forge(b"", r),
    "not utf-8": lambda h, r: forge(b"\xff\xfe{", r),
    "deep": lambda h, r: forge(b"[" * 4000, r),
    "very deep": lambda h, r: forge(b"[" * MAX_HEADER, r),
    "deeper than a header": lambda h, r: forge(b"[" * 1_000_000, r),
    "deep objects": lambda h, r: forge(b'{"length":' * 500, r),
    "many digits": lambda h, r: forge(b'{"length": ' + b"9" * 4000 + b"}", r),
    "a long header": lambda h, r: forge(json.dumps(h).encode() + b" " * 5_000_000, r),
    "a header beyond the file": lambda h, r: forge(h, r, size=60_000),
    "a huge header": lambda h, r: forge(h, r, size=2**32 - 1),
    "half a header": lambda h, r: forge(h, r, size=10),
    "more pages than belong to it": lambda h, r: forge(h, (r[0], r[1] + b"\0" * 64)),
    "fewer pages than belong to it": lambda h, r: forge(h, (r[0], r[1][:-1])),
    "more tables": lambda h, r: forge(h, (r[0] + b"\0" * 8, r[1])),
    "no second section": lambda h, r: forge(h, r[:1]),
    "another recipe": lambda h, r: forge({**h, "recipe_digest": "0" * 64}, r),
    "another model": lambda h, r: forge({**h, "model": "0" * 64}, r),
    "another layout": lambda h, r: forge({**h, "layout": "0" * 64}, r),
    "a model that is no text": lambda h, r: forge({**h, "model": [h["model"]]}, r),
    "a domain that is no text": lambda h, r: forge({**h, "domain": None}, r),
    "an older version": lambda h, r: forge(h, r, version=1),
    "a newer version": lambda h, r: forge(h, r, version=VERSION + 1),
    "another seal": lambda h, r: forge(h, r)[:-1] + b"?",
}


@pytest.mark.parametrize("what", FORGED)
def test_forged_headers_do_no_harm(what: str, small: tuple[Model, KVCache, bytes]) -> None:
    _, cache, data = small
    assert forge(*parts(data)) == data, "what is forged differs in one thing"
    refused(cache, FORGED[what](*parts(data)))


def test_refusals_say_what_to_do(small: tuple[Model, KVCache, bytes]) -> None:
    _, cache, data = small
    header, rest = parts(data)
    refused(cache, forge(header, rest, version=VERSION + 1), "newer versions.*update kvik")
    refused(
        cache, forge(header, rest, version=1), "older versions of kvik.*save the sequence again"
    )
    refused(cache, forge(header | {"recipe_digest": "0", "recipe": "int3"}, rest), "'int3', not to")
    refused(cache, data[:-9], "cut short; delete it and save the sequence again")


def integers(*values: int) -> bytes:
    return np.array(values, "<i8").tobytes()


def test_forged_ids_and_marks_are_refused(small: tuple[Model, KVCache, bytes]) -> None:
    _, cache, _ = small
    model = models.grouped()
    sequence = cache.create()
    feed(model, cache, sequence, [1, 2, 3, 4, 5])
    header, (tables, pages) = parts(dump(cache, sequence, ids=[1, 2, 3, 4, 5], marks=[2, 5]))
    cache.free(sequence)
    ids, rest = integers(1, 2, 3, 4, 5), tables[56:]
    assert tables[:56] == ids + integers(2, 5)
    refused(cache, forge(header, (integers(1, 2, -3, 4, 5) + tables[40:], pages)), "token ids")
    for marks in ((5, 2), (2, 2), (-1, 5), (2, 6), (2, 2**62)):
        forged = forge(header, (ids + integers(*marks) + rest, pages))
        refused(cache, forged, "impossible marks")


def test_forged_positions_are_refused() -> None:
    model = models.plain()
    cache = make(model, "heavy:9,every=16")
    sequence = cache.create()
    feed(model, cache, sequence, list(range(41)))
    header, (tables, pages) = parts(dump(cache, sequence))
    cache.free(sequence)
    policy = cache.resolved.groups[0].evicting
    assert policy is not None
    count, at = policy.stored(41, 0, 0), 8 * 41
    good = np.frombuffer(tables[at : at + 4 * count], np.int32)
    rest = tables[at + 4 * count :]
    for change in (good[::-1], good * 0, good - 1000, good + 41, np.minimum(good, good[-2])):
        forged = forge(header, (tables[:at] + change.astype(np.int32).tobytes() + rest, pages))
        refused(cache, forged, "impossible positions")
    for mass in (np.nan, np.inf, -1.0):
        forged = tables[: at + 4 * count] + np.float32(mass).tobytes() + rest[4:]
        refused(cache, forge(header, (forged, pages)), "impossible attention sums")


@pytest.mark.parametrize(
    ("ids", "marks"),
    [([1, 2], ()), ([1, 2, 3, 4], ()), ([1, -2, 3], ()), ([1, 2, 2**63], ()), ([1, 2, 3], [4])],
)
def test_what_does_not_fit_is_not_saved(ids: list[int], marks: list[int]) -> None:
    model = models.plain()
    cache = make(model, "int8")
    sequence = cache.create()
    feed(model, cache, sequence, [1, 2, 3])
    with pytest.raises(KvikError):
        dump(cache, sequence, ids=ids, marks=marks)
    with pytest.raises(KvikError, match="domain is too long"):
        dump(cache, sequence, domain="x" * MAX_HEADER)


def test_text_marks_and_domain_come_back() -> None:
    model = models.plain()
    cache = make(model, "int8")
    sequence = cache.create()
    feed(model, cache, sequence, [5, 6, 7])
    data = dump(cache, sequence, ids=[5, 6, 7], marks=[3, 0, 2, 0], domain="salt \u00e9 \0 / X")
    back = restore(cache, data)
    assert (back.ids, back.marks, back.domain) == ((5, 6, 7), (0, 2, 3), "salt \u00e9 \0 / X")
    cache.free(back.sequence)
    used = cache.pool.stats()
    for other in ("", "salt", "salt \u00e9 \0 / x"):
        with pytest.raises(KvikError, match="another domain"):
            saved.load(cache, data, identity=ID, domain=other)
        assert cache.pool.stats() == used
    assert saved.load(cache, data, identity=ID, domain=back.domain).domain == back.domain


def test_models_of_the_same_shape_do_not_share_files() -> None:
    spec = models.plain().spec
    one, two = (random_model(spec, seed=s, dtype=torch.float64) for s in (1, 2))
    cache = make(one, "int8")
    sequence = cache.create()
    feed(one, cache, sequence, [1, 2, 3])
    data = dump(cache, sequence, identity=one.identity)
    other = make(two, "int8")
    with pytest.raises(KvikError, match="another model"):
        saved.load(other, data, identity=two.identity)
    assert other.pool.stats().used == 0
    assert saved.load(other, data, identity=one.identity).sequence.length == 3


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
