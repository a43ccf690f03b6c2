"""The engine on a real model: equal to a session, token by token and text by text."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvik.engine.engine import Engine
from kvik.engine.request import Request
from kvik.engine.sampler import Sampling
from kvik.engine.session import Session
from kvik.models import Model

pytestmark = [pytest.mark.slow, pytest.mark.model]


def alone(model: Model, ids: list[int], recipe: str, new: int) -> tuple[list[int], float]:
    """Greedy tokens of a session, and the smallest margin between first and second."""
    session = Session(model, recipe, max_tokens=len(ids) + new)
    logits, tokens, margin = session.feed(ids)[-1], [], float("inf")
    for _ in range(new):
        best = logits.topk(2).values
        margin = min(margin, float(best[0] - best[1]))
        tokens.append(int(logits.argmax()))
        logits = session.feed(tokens[-1:])[-1]
    return tokens, margin


@pytest.mark.parametrize("recipe", ["fp32", "int8/int4", "fp16+sinks:4+window:60"])
def test_a_batch_gives_what_sessions_give(smollm: Model, text: list[int], recipe: str) -> None:
    """Ragged prompts with a common beginning; greedy tokens agree while the margins are clear."""
    prompts = [text[:100], text[:100] + text[500:540], text[900:950]]
    engine = Engine(smollm, recipe, memory="64MiB", step_tokens=64, poison=True)
    found = engine.generate(prompts, max_new=8, eos_ids=frozenset())
    for ids, one in zip(prompts, found, strict=True):
        want, margin = alone(smollm, ids, recipe, 8)
        if margin > (0.5 if "int" in recipe else 0.05):
            assert one.samples[0].tokens == want
    assert found[1].cached_tokens > 0
    assert engine.stats().pool.used == 0


def test_texts_stop_and_continue(smollm: Model, tmp_path: Path) -> None:
    """Prompts as text, several samples, a stop string, a saved prefix that is read back."""
    engine = Engine(smollm, "int8", memory="64MiB")
    prompt = "The capital of France is"
    request = Request(
        tuple(smollm.tokenizer.encode(prompt)), Sampling(0.8, seed=4), max_new=12, n=3
    )
    one = engine.generate([request])[0]
    for sample in one.samples:
        ids = [t for t in sample.tokens if t not in smollm.eos_ids]
        assert sample.text.strip() == smollm.tokenizer.decode(ids).strip()
    stopped = engine.generate([prompt], max_new=30, stop=(".",))[0]
    assert stopped.samples[0].finish in ("stop", "eos")
    assert "." not in stopped.text
    length = engine.save_prefix(tmp_path / "france", prompt)
    other = Engine(smollm, "int8", memory="64MiB")
    assert other.load_prefix(tmp_path / "france") == length
    again = other.generate([request])[0]
    assert again.cached_tokens == len(request.prompt) - 1
    assert [s.tokens for s in again.samples] == [s.tokens for s in one.samples]
