"""The tables of docs/benchmarks.md about published figures, from the newest records.

python bench/baselines/comparison.py            # writes the block between its two marks
python bench/baselines/comparison.py --check    # exit status 1 where it is not up to date
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from caches import PUBLISHED_STREAMS, QUANTIZED, STREAMS, Cache

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))
import page_block  # noqa: E402
from page_block import table  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "baselines.jsonl"
PAGE = page_block.PAGE

Record = dict[str, Any]
Key = tuple[str, str, str]
FIGURES = {"kl": "KL", "kl_p99": "p99", "top1": "top-1", "ppl_ratio": "ppl x"}
POSITIONS = {"all": "from 256 on", "early": "256 to 511", "some": "120 a text"}
SYSTEMS = {"kvik": "kvik", "quantized_caches": "transformers", "llama": "llama.cpp"}


def newest(records: Iterable[Record]) -> dict[Key, Record]:
    """The last record of every system, cache and set of positions."""
    return {(one["system"], one["cache"], one.get("positions", "")): one for one in records}


def write(figure: str, value: float) -> str:
    """A figure with the digits that matter: of a KL three, two below 0.001; else three places."""
    if not figure.startswith("kl"):
        return f"{value:.3f}"
    if value == 0:
        return "0"
    digits = 2 if value < 1e-3 else 3
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(value)))}f}"


def place(record: Record, figure: str, published: str) -> str:
    """Where a published figure is: ``in`` the interval, ``near`` it, or ``out``.

    ``near`` is where the figure of other text would be: neither was measured on the other's.
    """
    digits = Decimal(published).as_tuple().exponent
    value, rounding = float(published), 0.5 * 10.0 ** int(digits)
    for word, name in (("in", "interval"), ("near", "other_text")):
        low, high = record[name][figure]
        if low - rounding <= value <= high + rounding:
            return word
    return "**out**"


def around(record: Record, figure: str) -> str:
    """A figure with its 95 % interval."""
    low, high = (write(figure, one) for one in record["interval"][figure])
    return f"{write(figure, record['figures'][figure])} ({low} to {high})"


def title(cache: Cache) -> str:
    """What a cache is called, recipes as code."""
    return f"kvik `{cache.settings['kv']}`" if cache.peer == "kvik" else cache.name


def side_by_side(rows: dict[Key, Record]) -> list[str]:
    """Every cache, those with the fewest bits last; at equal bits the least KL first."""
    found = [(cache, rows.get((cache.peer, cache.name, ""))) for cache in QUANTIZED]
    ready = [(cache, record) for cache, record in found if record]
    ready.sort(key=lambda one: (-round(one[1]["bits"], 1), one[1]["figures"]["kl"]))
    lines = []
    for cache, record in ready:
        cells = [title(cache), str(record["n"]), f"{record['bits']:.2f}"]
        lines.append([*cells, *(around(record, name) for name in FIGURES)])
    return table(["cache", "n", "bits an element", *FIGURES.values()], lines)


def against_published(rows: dict[Key, Record]) -> list[str]:
    """The peers' caches: what was published, what came of it here."""
    lines = []
    for cache in QUANTIZED:
        record, known = rows.get((cache.peer, cache.name, "")), cache.published
        if known is None:
            continue
        if record is None:
            lines.append([cache.name, *["not measured"] * (3 + len(FIGURES))])
            continue
        cells = [f"{known.n} / {record['n']}", f"{known.bits} / {record['bits']:.2f}"]
        for figure in FIGURES:
            value = getattr(known, figure)
            ours = write(figure, record["figures"][figure])
            cells.append(f"{value} / {ours} {place(record, figure, value)}")
        each = [write("kl", one["kl"]) for one in record["by_offset"]]
        lines.append([cache.name, *cells, ", ".join(each)])
    head = [f"{name}: published / here" for name in ("n", "bits", *FIGURES.values())]
    return table(["cache", *head, "KL at each offset"], lines)


def streamed(rows: dict[Key, Record]) -> list[str]:
    """Window, sinks and recomputation: perplexity, how many times the full cache's, KL, top-1."""
    lines = []
    for positions, said in POSITIONS.items():
        for stream in STREAMS:
            record = rows.get((stream.peer, stream.name, positions))
            if record is None:
                continue
            known = PUBLISHED_STREAMS.get((stream.name, positions), {})
            cells = [stream.name, SYSTEMS[stream.peer], said, f"{record['ppl']:.2f}"]
            for figure in ("ppl_ratio", "kl", "top1"):
                # The full cache is what all are set against.
                cell = "" if stream.name == "full" else around(record, figure)
                if figure in known:
                    cell += f"; {known[figure]} {place(record, figure, known[figure])}"
                cells.append(cell)
            lines.append(cells)
    head = ["cache", "system", "positions", "ppl", "over full; published", "KL; published"]
    return table([*head, "top-1; published"], lines) if lines else []


def provenance(rows: dict[Key, Record]) -> list[str]:
    """Machine, versions, offsets and commits behind the tables."""
    if not rows:
        return ["Nothing was measured yet."]
    records = list(rows.values())
    env = records[0]["env"]
    versions = sorted({f"{k} {v}" for one in records for k, v in one["versions"].items() if v})
    commits = sorted({commit for one in records for commit in one["commits"]})
    starts = sorted({(one["part"], *one["starts"]) for one in records})
    places = "; ".join(f"{part}: {', '.join(f'{one:,}' for one in many)}" for part, *many in starts)
    return [
        f"{env['cpu']}, {env['cores']} cores ({', '.join(env['instruction_sets'])}); kvik at "
        f"{', '.join(commits)}; {', '.join(versions)}. The texts begin at tokens ({places})."
    ]


def render(records: Iterable[Record]) -> str:
    """The block."""
    rows = newest(records)
    parts = [
        side_by_side(rows),
        ["What was published of these, and what came of it here:"],
        against_published(rows),
    ]
    if passing := streamed(rows):
        parts += [["Streamed text through a budget of 256 tokens, at positions past it:"], passing]
    parts.append(provenance(rows))
    return "\n\n".join("\n".join(part) for part in parts)


placed = partial(page_block.placed, "baselines")


if __name__ == "__main__":
    sys.exit(page_block.main(__doc__, "baselines", [RESULTS], render))
