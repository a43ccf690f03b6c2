"""The needle maps of docs/benchmarks.md, from what `kvik eval --task needle` measured.

python bench/needle_maps.py            # writes the block between its two marks
python bench/needle_maps.py --check    # exit status 1 where it is not up to date
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import page_block

from kvik.evaluate.outcome.summary import summarize
from kvik.evaluate.tasks import REFERENCE

RESULTS = tuple(
    Path(__file__).with_name("results") / f"needle-{model}" / "results.jsonl"
    for model in ("smollm2", "gemma3")
)
Record = dict[str, Any]


def split(records: Iterable[Record]) -> Iterator[tuple[Record, list[Record]]]:
    """Every sweep's header and cells: the files one after the other."""
    header, cells = None, list[Record]()
    for record in records:
        if "schema" in record:
            if header is not None:
                yield header, cells
            header, cells = record, []
        else:
            cells.append(record)
    if header is not None:
        yield header, cells


def cell(row: Record) -> str:
    """Answers given, and what is left of their likelihood, each with how many of it count."""
    kept, scored = row["retention"], row["cells_scored"]
    hits = f"{row['hits']:.0f} of {row['asked']}" if row["asked"] else "none counted"
    return f"{hits}; {kept['value']:.2f} ({scored})" if kept else hits


def dense(rows: Sequence[Record]) -> list[str]:
    """What all others are set against: at each depth, how likely the dense cache's answer is."""
    found = []
    for row in rows:
        for at in row["map"]:
            answer = "missed" if at["hits"] is None else "given"
            clear = "no" if at["retention"] is None else "yes"
            figures = f"{row['context']:,}", f"{at['at']:g}", f"{at['logp']:.2f}"
            found.append([*figures, answer, clear])
    head = ["context", "depth", "ln p of the answer", "answer", "3 nats above the floor"]
    return page_block.table(head, found)


def model(header: Record, cells: Sequence[Record]) -> list[str]:
    """The block of one model."""
    recipes = list(dict.fromkeys(one["recipe"] for one in cells))
    rows = summarize(cells, recipes)
    contexts = sorted({row["context"] for row in rows})
    by_recipe = {r: {row["context"]: row for row in rows if row["recipe"] == r} for r in recipes}
    lines = []
    for recipe, found in by_recipe.items():
        texts = [cell(found[c]) if c in found else "failed" for c in contexts]
        size = f"{found[contexts[-1]]['kv_bytes']:,}" if contexts[-1] in found else "failed"
        lines.append([f"`{recipe}`", *texts, size])
    head = ["recipe", *(f"{c:,}" for c in contexts), "KV bytes at the longest"]
    env = header["env"]
    return [
        f"### {header['model']}",
        "",
        *page_block.table(head, lines),
        "",
        "The dense cache:",
        "",
        *dense(list(by_recipe[REFERENCE].values())),
        "",
        f"    {env['command']}",
        "",
        f"{env['cpu']}, {env['cores']} cores ({', '.join(env['instruction_sets'])}); kvik "
        f"{env['kvik']} at {env['commit']}, torch {env['torch']}.",
        "",
    ]


def render(records: Iterable[Record]) -> str:
    """The block."""
    parts = [line for header, cells in split(records) for line in model(header, cells)]
    return "\n".join(parts).rstrip() or "Nothing was measured yet."


placed = partial(page_block.placed, "needles")


if __name__ == "__main__":
    sys.exit(page_block.main(__doc__, "needles", RESULTS, render))
