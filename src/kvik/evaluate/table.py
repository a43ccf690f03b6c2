"""A comparison in the terminal: progress while it runs, a table at the end."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from kvik.evaluate.figures import COLUMNS, Column


class Bars:
    """Progress bars on standard error, one a recipe; plain lines where it is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.fields[recipe]:<24}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[stage]:<8}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._current = self._bars.add_task("", recipe="", stage="", total=1, visible=False)

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def begin(self, recipe: str, total: int) -> None:
        """Start the bar of a recipe."""
        self._current = self._bars.add_task("", recipe=recipe, stage="loading", total=total)
        if not self._console.is_terminal:
            self._console.print(Text(f"{recipe} ..."))

    def advance(self, stage: str, tokens: int) -> None:
        """Move the current bar."""
        self._bars.update(self._current, advance=tokens, stage=stage)

    def end(self, result: dict[str, Any]) -> None:
        """Close the current bar."""
        failed = "error" in result
        bar = self._bars.tasks[-1]
        done = bar.completed if failed else bar.total
        self._bars.update(self._current, completed=done, stage="failed" if failed else "done")
        self._bars.stop_task(self._current)


def make_table(comparison: dict[str, Any]) -> Table:
    """The figures as a rich table; a failed recipe's row gives the reason."""
    title = f"{comparison['model']}, {comparison['context']:,} tokens of context"
    table = Table(title=Text(title), title_justify="left")
    table.add_column("recipe", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column.head, justify="right")
    for result in comparison["results"]:
        if "error" not in result:
            table.add_row(Text(result["recipe"]), *[_cell(column, result) for column in COLUMNS])
        else:
            table.add_row(Text(result["recipe"]), Text("failed", style="red"))
    return table


def _cell(column: Column, result: dict[str, Any]) -> Text:
    """The figure, and under it what changed since the baseline."""
    changed = column.changed(result)
    return Text(column.write(result) + (f"\n{changed}" if changed else ""))
