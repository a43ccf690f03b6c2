"""A block of a page between two marks, written by a script or compared with what it would write."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"


def placed(name: str, page: str, block: str) -> str:
    """The page with ``block`` between the marks of that name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = page.split(begin)
    return f"{before}{begin}\n{block}\n{end}{rest.split(end)[1]}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Lines of Markdown."""
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def recorded(results: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """All records of these JSON Lines files, of those that exist."""
    for path in results:
        if path.exists():
            yield from map(json.loads, path.read_text().splitlines())


def main(
    about: str | None,
    name: str,
    results: Iterable[Path],
    render: Callable[[Iterable[dict[str, Any]]], str],
) -> int:
    """Writes the block of docs/benchmarks.md from files of records, one after the other.

    With ``--check`` compares it and is 1 where it differs.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    page = PAGE.read_text()
    wanted = placed(name, page, render(recorded(results)))
    if args.check:
        return int(wanted != page)
    PAGE.write_text(wanted)
    return 0
