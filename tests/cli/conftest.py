"""The command as a person calls it, in this process."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kvik.cli import cli, guarded


@dataclass(frozen=True)
class Done:
    """What a call left: exit status and both streams."""

    status: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The only line on standard error."""
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1, self.err
        return self.err.rstrip("\n")


Call = Callable[..., Done]


@pytest.fixture
def kvik(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """``kvik("models", "--json")``; ``stdin`` is what a pipe would bring."""

    def call(*args: str, stdin: bytes = b"") -> Done:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        capsys.readouterr()
        status = guarded(cli, args)
        return Done(status, *capsys.readouterr())

    return call
