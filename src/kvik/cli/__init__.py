"""The command ``kvik``: parses, calls one public function per verb, turns errors into one line.

Nothing heavy is imported before a verb needs it. Exit status: 0 done, 1 failed, 2 bad input,
130 interrupted, 143 terminated (129 when the terminal went away).
"""

from __future__ import annotations

from typing import NoReturn

from kvik.cli import bench, measuring, planning, running
from kvik.cli.guard import guarded, launch
from kvik.cli.root import cli

__all__ = ["bench", "cli", "guarded", "main", "measuring", "planning", "running"]


def main() -> NoReturn:
    """Entry point of the command."""
    launch(cli)
