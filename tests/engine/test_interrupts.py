"""Ctrl-C at any line outside a step: nothing is lost, held or left behind."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engine.common import prompt, whole
from tests.engine.interrupting import at_some_lines, interrupted_at, lines_of

from kvik.engine.engine import Engine
from kvik.engine.request import Request, Sample
from kvik.engine.sampler import Sampling
from kvik.engine.session import Session
from kvik.engine.uninterrupted import uninterrupted
from kvik.testing import models

TINY = models.single()
RECIPE = "fp16+page:8"
PAIR = Request(prompt(20), Sampling(1.0, seed=1), max_new=5, n=2)
OTHER = Request(prompt(9, 1), Sampling(1.0, seed=2), max_new=5)
DONE = prompt(40, 2)
LINES = 10  # of each call; the scene takes longer than the call

Found = dict[tuple[int, int], Sample]


class Scene:
    """An engine at work: two requests under way, a prefix stored, and news not told yet."""

    def __init__(self, **options: object) -> None:
        self.engine = Engine(TINY, RECIPE, memory="1MiB", poison=True, **options)  # type: ignore[arg-type]
        self.engine.generate([DONE], max_new=1)
        self.numbers = [self.engine.add(PAIR), self.engine.add(OTHER)]
        self.found: Found = defaultdict(Sample)
        for _ in range(3):
            self.step()

    def step(self) -> None:
        for output in self.engine.step():
            self.found[output.id, output.sample].add(output)

    def finish(self) -> Found:
        """Steps until all has ended, which must not take for ever, and leaves nothing behind."""
        assert not self.engine._lock.locked()
        for _ in range(60):
            if not self.engine.busy:
                break
            self.step()
        assert not self.engine.busy
        stats = self.engine.stats()
        assert stats.pool.used == stats.swapped_bytes == 0
        assert whole(self.engine)
        return self.found


def answers() -> Found:
    return dict(Scene().finish())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("abort", {}),
        ("preempt", {}),
        ("preempt", {"swap": "1MiB"}),
        ("add", {}),
        ("load", {}),
        ("save", {}),
        ("generate", {}),
    ],
)
def test_interrupts_between_steps_lose_nothing(
    name: str, options: dict[str, object], tmp_path: Path
) -> None:
    """Those under way get their answers, token by token, and every page comes back."""
    want, path = answers(), tmp_path / "saved.kvik"
    source = Engine(TINY, RECIPE, memory="1MiB")
    source.generate([prompt(50, 3)], max_new=1)
    source.save_prefix(path, prompt(50, 3))
    scene = Scene()

    def make() -> Callable[[], object]:
        nonlocal scene
        scene = Scene(**options)
        engine, first = scene.engine, scene.numbers[0]
        calls: dict[str, Callable[[], object]] = {
            "abort": lambda: engine.abort(first),
            "preempt": lambda: engine.preempt(first),
            "add": lambda: engine.add(prompt(7, 4), max_new=2),
            "load": lambda: engine.load_prefix(path),
            "save": lambda: engine.save_prefix(tmp_path / "other.kvik", DONE),
            "generate": lambda: engine.generate([prompt(7, 4), prompt(6, 5)], max_new=3),
        }
        return calls[name]

    count = 0
    for _ in at_some_lines(make, LINES):
        found, count = scene.finish(), count + 1
        for key, sample in want.items():
            got = found[key]
            if key[0] == scene.numbers[0] and got.finish == "cancelled":
                assert name == "abort"
                assert got.tokens == sample.tokens[: len(got.tokens)]
            else:
                assert (got.tokens, got.finish) == (sample.tokens, sample.finish)
        for key in found.keys() - want.keys():
            assert name in ("add", "generate") or found[key].finish == "cancelled"
    assert count >= LINES
    assert not [p for p in tmp_path.iterdir() if p.name not in ("saved.kvik", "other.kvik")]


@pytest.mark.parametrize("name", ["mark", "fork", "trim", "close"])
@pytest.mark.parametrize("recipe", [RECIPE, "none"])
def test_interrupts_of_a_session_lose_nothing(name: str, recipe: str) -> None:
    """Text and cache stay of one length; marks and pages are all there again after a close."""
    session = Session(TINY, recipe, max_tokens=100)

    def make() -> Callable[[], object]:
        nonlocal session
        session = Session(TINY, recipe, max_tokens=100, max_marks=3)
        session.feed(list(prompt(30)))
        session.mark()
        calls: dict[str, Callable[[], object]] = {
            "mark": session.mark,
            "fork": session.fork,
            "trim": lambda: session.trim(20),
            "close": session.close,
        }
        return calls[name]

    for _ in at_some_lines(make, LINES):
        assert session.tokens == list(prompt(30))[: len(session.tokens)]
        if recipe != "none":
            assert session._sequence.length == len(session.tokens)
        if name != "close":
            session.feed([1, 2])
        session.close()
        assert session.cache.pool.stats().used == 0
        assert session._room.marks == 3


def test_handlers_are_what_they_were_wherever_a_signal_comes() -> None:
    """One signal is held while another comes at every line of the guard itself."""
    got: list[int] = []

    def block() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            assert not got or block.once  # type: ignore[attr-defined]

    block.once = False  # type: ignore[attr-defined]
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    mine = signal.getsignal(signal.SIGTERM)
    try:
        total = lines_of(block)
        assert total > 20
        for line in range(1, total + 1):
            got.clear()
            with pytest.raises(KeyboardInterrupt):
                interrupted_at(line, block, outside="")
            block.once = True  # type: ignore[attr-defined]
            held = len(got)
            assert held <= 1
            signal.raise_signal(signal.SIGTERM)
            assert len(got) == held + 1
            with uninterrupted():
                signal.raise_signal(signal.SIGTERM)
                assert len(got) == held + 1
            assert len(got) == held + 2
            assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)
