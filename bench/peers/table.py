"""The table of docs/benchmarks.md, from the newest record of every row.

python bench/peers/table.py            # writes the block between its two marks
python bench/peers/table.py --check    # says whether it is up to date
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rows import ROWS
from stats import ratio

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))
import page_block  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "peers.jsonl"
PAGE = page_block.PAGE

Record = dict[str, Any]
Systems = dict[str, Record]


def newest(records: Iterable[Record]) -> dict[str, Systems]:
    """Of every row the systems of its last run: only what took turns together is compared."""
    found: dict[str, Systems] = {}
    for record in records:
        row = found.setdefault(record["row"], {})
        if row and next(iter(row.values()))["run"] != record["run"]:
            row.clear()
        row[record["system"]] = record
    return found


def floor_ms(record: Record) -> float:
    """Milliseconds of reading the weights and the K and V once, with all threads."""
    nbytes = record["weight_bytes"] + record["kv_bytes"]
    return float(nbytes / record["read_gb_s"][str(record["threads"])] / 1e6)


def slower(systems: Systems, ours: str, theirs: str) -> float | None:
    """How many times as long ``theirs`` takes; of several that begin so, the fastest."""
    if ours not in systems:
        return None
    found = [
        ratio(record["rounds"], systems[ours]["rounds"])
        for name, record in systems.items()
        if name.startswith(theirs)
    ]
    return min(found, default=None)


def over_floor(systems: Systems, ours: str) -> float | None:
    """How many times its floor it takes."""
    if ours not in systems:
        return None
    return float(systems[ours]["ms"]["median"] / floor_ms(systems[ours]))


def share_of_bandwidth(systems: Systems, ours: str) -> float | None:
    """K and V over the time of attention alone, in percent of the machine's read bandwidth."""
    if ours not in systems or "attend_ms" not in systems[ours]:
        return None
    record = systems[ours]
    reached = record["kv_bytes"] / record["attend_ms"]["median"] / 1e6
    return float(100 * reached / record["read_gb_s"][str(record["threads"])])


@dataclass(frozen=True)
class Target:
    """A figure and what it should be at least, or at most."""

    figure: str
    row: str
    value: Callable[[Systems], float | None]
    least: float | None = None
    most: float | None = None
    unit: str = "x"

    def cells(self, rows: dict[str, Systems]) -> tuple[str, str, str]:
        """Figure, target and what was seen."""
        bound = self.least if self.least is not None else self.most
        word = "at least" if self.least is not None else "at most"
        seen = self.value(rows.get(self.row, {}))
        said = "not measured" if seen is None else f"{seen:.{0 if self.unit == ' %' else 2}f}"
        if seen is not None:
            met = seen >= self.least if self.least is not None else seen <= (self.most or 0)
            said += self.unit + ("" if met else " (missed)")
        return self.figure, f"{word} {bound:g}{self.unit}", said


def _times(figure: str, row: str, ours: str, theirs: str, least: float) -> Target:
    return Target(figure, row, lambda systems: slower(systems, ours, theirs), least=least)


def _floor(figure: str, row: str, ours: str, most: float) -> Target:
    return Target(figure, row, lambda systems: over_floor(systems, ours), most=most)


def _share(figure: str, row: str, ours: str, least: float) -> Target:
    def value(systems: Systems) -> float | None:
        return share_of_bandwidth(systems, ours)

    return Target(figure, row, value, least=least, unit=" %")


INT8, INT4, LLAMA = "kvik int8", "kvik int4", "llama.cpp"
Q8, Q4 = "llama.cpp q8_0", "llama.cpp q4_0"
TARGETS = (
    _times("decode at 512, `int8` against llama.cpp's fastest", "decode-512", INT8, LLAMA, 1.4),
    _floor("decode at 8,000, `int8`, over its floor", "decode-8000", INT8, 1.5),
    _floor("the same, `int4`", "decode-8000", INT4, 1.5),
    _share("attention at 8,000, `int8`, of the read bandwidth", "decode-8000", INT8, 75),
    _share("the same, `int4`", "decode-8000", INT4, 60),
    _times("decode at 8,000, `int8` against llama.cpp q8_0", "decode-8000", INT8, Q8, 5),
    _times("the same, `int4` against q4_0", "decode-8000", INT4, Q4, 6),
    _times("the same, `int8` against llama.cpp's fastest", "decode-8000", INT8, LLAMA, 3.5),
    _times("the same, `int4` against kvik's `int8`", "decode-8000", INT4, INT8, 1),
    _times("prefill of 4,096, `int8` against llama.cpp q8_0", "prefill-4096", INT8, Q8, 6),
    _times("the same, against llama.cpp's fastest", "prefill-4096", INT8, LLAMA, 2.5),
    _times("the same, against transformers fp32", "prefill-4096", INT8, "transformers", 1.4),
    _times("8 sequences of 4,096, `int8` against vLLM", "decode-8x4096", INT8, "vLLM", 8),
    _floor("the same, over its floor", "decode-8x4096", INT8, 2.5),
    _times("16 chats of 2,000, `int8` against vLLM", "decode-16x2000", INT8, "vLLM", 8),
    _times("the same, against llama.cpp q8_0 in parallel", "decode-16x2000", INT8, Q8, 4),
    _floor("Gemma 3 270M at 8,192, `int8`, over its floor", "gemma-8192", INT8, 1.5),
    _times("1B shape at 4,096, `int8` against llama.cpp q8_0", "llama-1b-4096", INT8, Q8, 1.5),
)


def render(records: Iterable[Record]) -> str:
    """The block: targets, then every system of every row."""
    rows = newest(records)
    lines = ["| figure | target | seen |", "|---|---|---|"]
    lines += ["| " + " | ".join(target.cells(rows)) + " |" for target in TARGETS]
    lines += ["", "| work | system | ms, median (quartiles) | over floor |", "|---|---|---|---|"]
    for name, row in ROWS.items():
        for system, record in rows.get(name, {}).items():
            ms = record["ms"]
            floor = f"{ms['median'] / floor_ms(record):.2f}" if "kv_bytes" in record else ""
            digits = 0 if ms["median"] >= 1000 else 1
            cells = (ms[key] for key in ("median", "low", "high"))
            median, low, high = (f"{cell:,.{digits}f}" for cell in cells)
            title, kind = row.title, f"`{system[5:]}`" if system.startswith("kvik ") else system
            lines.append(f"| {title} | {kind} | {median} ({low} to {high}) | {floor} |")
    lines += ["", *_provenance(rows)]
    return "\n".join(lines)


def _provenance(rows: dict[str, Systems]) -> list[str]:
    """Machine, commits, bandwidth, load and commands behind the tables."""
    firsts = [next(iter(systems.values())) for systems in rows.values()]
    if not firsts:
        return ["Nothing was measured yet."]
    env = firsts[0]["env"]
    reads = [one["read_gb_s"] for one in firsts]
    count = str(firsts[0]["threads"])
    spans = [sorted(read[n] for read in reads) for n in ("1", count)]
    loads = sorted(one["load_average"] for one in firsts)
    versions = sorted(
        {
            f"{record['system'].split()[0]} {record['version']}"
            for systems in rows.values()
            for record in systems.values()
            if record.get("version")
        }
    )
    commits = sorted({one["env"]["commit"] or "unknown" for one in firsts})
    return [
        f"{env['cpu']}, {env['cores']} cores ({', '.join(env['instruction_sets'])}); kvik at "
        f"{', '.join(commits)}; {', '.join(versions)}. Plain reads: {spans[0][0]:.1f} to "
        f"{spans[0][-1]:.1f} GB/s with one thread, {spans[1][0]:.1f} to {spans[1][-1]:.1f} with "
        f"{count}. Load average while measuring: {loads[0]:.1f} to {loads[-1]:.1f}.",
    ]


placed = partial(page_block.placed, "peers")


if __name__ == "__main__":
    sys.exit(page_block.main(__doc__, "peers", [RESULTS], render))
