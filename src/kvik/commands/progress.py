"""Progress of a download on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from kvik.models.sources import Progress as Report


@contextmanager
def fetch_progress(console: Console) -> Iterator[Report]:
    """A function to hand to ``kvik.models.sources``; shows a bar at a terminal, lines elsewhere."""
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    tasks = {}

    def report(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total or None)
            if not console.is_terminal:
                console.print(what, markup=False, highlight=False)
        bars.update(tasks[what], completed=done, total=total or None)

    with bars:
        yield report
