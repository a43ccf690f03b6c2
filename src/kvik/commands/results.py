"""What measuring verbs do alike: a folder for files, JSON or a table on standard output."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from kvik.errors import KvikError
from kvik.evaluate.files import check_writable, write_atomic


def out_folder(out: str | None) -> Path | None:
    """The folder of --out; KvikError, before anything runs, where it cannot be written to."""
    if out == "":
        raise KvikError("--out is empty: give the name of a folder, or leave it out")
    folder = None if out is None else Path(out)
    if folder is not None:
        check_writable(folder)
    return folder


def to_json(result: Any) -> str:
    """A result as --json prints it and files hold it; NaN has no place in it."""
    return json.dumps(result, indent=2, allow_nan=False) + "\n"


def deliver(
    text: str,
    make_table: Callable[[], Table],
    leave: Callable[[], Iterable[str]],
    *,
    as_json: bool,
    notes: Sequence[str] = (),
) -> None:
    """Prints, then leaves files and names them.

    What took hours is not lost to a full disk, nor the files to a reader that went away.
    """
    try:
        present(text, {}, make_table, as_json=as_json, notes=notes)
    except OSError:
        list(leave())
        raise
    for name in list(leave()):
        if not as_json:
            click.echo(name)


def present(
    text: str,
    files: Mapping[Path, str],
    make_table: Callable[[], Table],
    *,
    as_json: bool,
    notes: Sequence[str] = (),
) -> None:
    """Writes the files, each whole, then prints ``text`` (JSON), or the table and their names."""
    for path, content in files.items():
        write_atomic(path, content)
    if as_json:
        click.echo(text, nl=False)
        return
    # Piped, the table must not be folded to 80 columns.
    console = Console() if Console().is_terminal else Console(width=160)
    console.print(make_table())
    for note in notes:
        click.echo(f"* {note}")
    for path in files:
        click.echo(str(path))
