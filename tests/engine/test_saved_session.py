"""Sessions on disk (public cases 45, 86 and 87): what comes back, for whom, and what does not."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tracers
from torch import Tensor

from kvik.cache import about
from kvik.engine.session import Session
from kvik.errors import CapacityError, KvikError
from kvik.models import Model, random_model
from kvik.models.decoder import Decoder
from kvik.testing import models

assert tracers.PerChannel.names  # importing them registered them

TOKENS = random.Random(3).choices(range(96), k=200)
KINDS: list[tuple[Callable[[], Model], str]] = [
    (models.grouped, "int8/int4+page:7"),
    (models.plain, "sinks:3+window:20+page:4"),
    (models.grouped, "perchannel:4,residual=7,raw+page:8"),
    (models.plain, "heavy:9,every=16"),
    (models.stateful, "int8"),
    (models.latent, "int8"),
    (models.plain, "none"),
]


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each forward pass computes."""
    counts: list[int] = []
    real = Decoder.forward

    def forward(self: Decoder, tokens: Sequence[int], *rest: Any) -> Tensor:
        counts.append(len(tokens))
        return real(self, tokens, *rest)

    monkeypatch.setattr(Decoder, "forward", forward)
    return counts


@pytest.mark.parametrize(("make", "recipe"), KINDS)
def test_a_restored_session_computes_only_what_follows(
    make: Callable[[], Model], recipe: str, tmp_path: Path, computed: list[int]
) -> None:
    """Case 86: restore, then the same prompt with a new end; the logits are those of one run."""
    path = tmp_path / "chat.kv"
    session = Session(make(), recipe, max_tokens=200)
    session.feed(TOKENS[:41])
    session.mark()
    session.save(path)
    want = session.feed(TOKENS[41:60], logits="all", chunk=7)
    session.close()
    computed.clear()
    back = Session.restore(make(), path, max_tokens=100)
    assert computed == []
    assert back.tokens == TOKENS[:41]
    assert back.kv_bytes == back.planned_bytes(41)
    got = back.feed(TOKENS[41:60], logits="all", chunk=7)
    assert computed == ([60] if recipe == "none" else [7, 7, 5])
    torch.testing.assert_close(got, want, rtol=0, atol=2e-5)
    assert back.trim(60) == 0
    back.close()
    assert back.cache.pool.stats().used == 0


def test_a_session_without_tokens_comes_back(tmp_path: Path) -> None:
    model = models.plain()
    Session(model, "int8", max_tokens=9).save(tmp_path / "empty.kv")
    assert Session.restore(model, tmp_path / "empty.kv", max_tokens=9).tokens == []


def test_a_restored_session_can_go_on_its_way(tmp_path: Path) -> None:
    """It grows to its limit, forks, trims, and is saved again."""
    model, path = models.plain(), tmp_path / "chat.kv"
    first = Session(model, "window:9+page:4", max_tokens=200)
    first.feed(TOKENS[:50])
    first.save(path)
    session = Session.restore(model, path, max_tokens=60)
    twin = session.fork()
    session.feed(TOKENS[50:60])
    with pytest.raises(CapacityError):
        session.feed([1])
    assert session.trim(20) == 20, "nothing of the window is left, and marks were not saved"
    session.save(path)
    assert Session.restore(model, path, max_tokens=60).tokens == TOKENS[:20]
    twin.close()
    session.close()
    assert session.cache.pool.stats().used == 0


def test_a_domain_holds_on_disk(tmp_path: Path) -> None:
    """Case 45: a salt is not lost in the second tier."""
    model = models.plain()
    for domain in ("", "a", "b"):
        session = Session(model, "int8", max_tokens=50)
        session.feed(TOKENS[:20])
        session.save(tmp_path / f"of {domain}.kv", domain=domain)
    for theirs in ("", "a", "b"):
        path = tmp_path / f"of {theirs}.kv"
        assert about(path).domain == theirs
        for mine in ("", "a", "b", "A", "a ", "a\0"):
            if mine == theirs:
                assert Session.restore(model, path, max_tokens=50, domain=mine).tokens
                continue
            with pytest.raises(KvikError, match="another domain"):
                Session.restore(model, path, max_tokens=50, domain=mine)


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    """Case 87: a clear error, and the next restore works."""
    spec, path = models.plain().spec, tmp_path / "chat.kv"
    model = random_model(spec, seed=1)
    session = Session(model, "int8", max_tokens=50)
    session.feed(TOKENS[:20])
    session.save(path)
    good = path.read_bytes()
    for bad in (
        b"",
        good[:-1],
        good[: len(good) // 2],
        good[:100] + b"?" + good[101:],
        b"\0" * 999,
    ):
        path.write_bytes(bad)
        with pytest.raises(KvikError, match="saved"):
            Session.restore(model, path, max_tokens=50)
    path.write_bytes(good)
    with pytest.raises(KvikError, match="another model"):
        Session.restore(random_model(spec, seed=2), path, max_tokens=50)
    with pytest.raises(KvikError, match="another recipe, 'int8', not to 'int4'"):
        Session.restore(model, path, max_tokens=50, recipe="int4")
    with pytest.raises(CapacityError, match="20 tokens does not fit a session for 19"):
        Session.restore(model, path, max_tokens=19)
    assert Session.restore(model, path, max_tokens=20).tokens == TOKENS[:20]
