"""Pages that a script makes: written, or with ``--check`` compared with what it would write."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path


def write_or_check(script: str, pages: Mapping[Path, str], folder: Path | None = None) -> int:
    """Status 1 where a page is stale, or where ``folder`` has pages that ``script`` does not make.

    Without ``--check`` on the command line the pages are written.
    """
    if "--check" not in sys.argv[1:]:
        for path, text in pages.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [p for p, text in pages.items() if not p.exists() or p.read_text("utf-8") != text]
    stale += [p for p in folder.glob("*.md") if p not in pages] if folder else []
    for path in stale:
        print(f"{path.name} is stale: run python tools/{script}")
    return int(bool(stale))
