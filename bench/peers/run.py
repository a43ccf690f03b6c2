"""Runs kvik and its peers on the same work, in turns, and prints what came of it.

    python bench/peers/run.py decode-512 decode-8000
    python bench/peers/run.py llama-1b-4096 --model llama-1b=./llama-1b.gguf

Each system of a row is a process of its own in its own environment (bench/peers/install_*.sh make
them), loaded and filled before the first turn. Then they take turns, A B C A B C, so that what
disturbs the machine meets all alike. Systems whose environment is missing are left out, and said
to be. Every row appends one record a system to the file of results.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from process import Process, python_of
from rows import ROWS, Row, System
from stats import ratio, summary

from kvik.bench.bandwidth import read_bandwidth
from kvik.errors import KvikError
from kvik.evaluate.provenance import command, environment
from kvik.machine import usable_cores
from kvik.models import sources

HERE = Path(__file__).resolve().parent
PAUSE = 0.5  # seconds before a turn: the threads of the last one spin for a while
BUILT_IN = {"smollm2": "smollm2-135m", "gemma3": "gemma3-270m"}


class Peer(Process):
    """A worker process of one system."""

    def __init__(self, system: System, python: Path, threads: int) -> None:
        self.system = system
        worker = "llama" if system.peer == "ik_llama" else system.peer
        super().__init__(system.name, python, HERE / f"{worker}_worker.py", threads)


@contextlib.contextmanager
def opened(row: Row, model: Path, threads: int, most: int) -> Iterator[list[Peer]]:
    """Workers of the row's systems that are installed, loaded and, for decoding, filled."""
    with contextlib.ExitStack() as stack:
        peers = []
        for system in row.systems:
            python = python_of(system.peer)
            if python is None:
                print(f"  {system.name}: not installed, left out", flush=True)
                continue
            peer = Peer(system, python, threads)
            stack.callback(peer.close)
            facts = {"model": str(model), "threads": threads, "sequences": row.sequences}
            facts["work"] = row.work
            # Whatever a peer cannot do is said, and the others go on.
            try:
                peer.about = peer.ask("open", tokens=row.tokens + most, **facts, **system.settings)
                if row.work == "decode":
                    asked = {"tokens": row.tokens, "sequences": row.sequences}
                    peer.about |= {"fill": peer.ask("fill", **asked)}
            except KvikError as error:
                print(f"  {error}; left out", flush=True)
                continue
            peers.append(peer)
        yield peers


def measure(row: Row, peers: list[Peer], rounds: int, steps: int) -> dict[str, list[list[float]]]:
    """Seconds of every system: one list a round."""
    found: dict[str, list[list[float]]] = {peer.system.name: [] for peer in peers}
    for number in range(rounds):
        for peer in peers:
            time.sleep(PAUSE)
            if row.work == "decode":
                seconds = peer.ask("decode", steps=steps)["seconds"]
            else:
                asked = {"tokens": row.tokens, "sequences": row.sequences}
                seconds = [peer.ask("prefill", **asked)["seconds"]]
            found[peer.system.name].append(seconds)
            ms = summary([seconds])["median"]
            print(f"  round {number + 1}, {peer.system.name}: {ms:,.1f} ms", flush=True)
    return found


def run(row: Row, model: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row: the records of its systems."""
    print(row.title, flush=True)
    threads, start = args.threads, time.time()
    read = [read_bandwidth(count) for count in sorted({1, threads})]
    with opened(row, model, threads, args.steps + 8) as peers:
        found = measure(row, peers, args.rounds, args.steps)
        alone = {
            peer.system.name: peer.ask("attend", steps=args.steps)["seconds"]
            for peer in peers
            if peer.system.peer == "kvik" and row.work == "decode"
        }
        about = {peer.system.name: peer.about for peer in peers}
    again = [read_bandwidth(one.threads) for one in read]
    shared = {
        "run": int(start),
        "row": row.name,
        "model": row.model,
        "work": row.work,
        "tokens": row.tokens,
        "sequences": row.sequences,
        "threads": threads,
        # What the machine can do is the best that it did, before or after.
        "read_gb_s": {
            str(a.threads): max(a.best, b.best) / 1e9 for a, b in zip(read, again, strict=True)
        },
        "load_average": os.getloadavg()[0],
    }
    records = []
    for name, seconds in found.items():
        fill = about[name].get("fill", {})
        record = shared | {"system": name, "version": about[name].get("version")}
        record |= {"ms": summary(seconds)}
        record |= {"rounds": [[round(1e3 * second, 4) for second in one] for one in seconds]}
        record |= {key: fill[key] for key in ("kv_bytes", "weight_bytes") if key in fill}
        if name in alone:
            record["attend_ms"] = summary([alone[name]])
        records.append(record)
    return records


def show(records: list[dict[str, Any]]) -> None:
    """Medians, and how many times as long the others take as the row's first system."""
    for record in records:
        times = ratio(record["rounds"], records[0]["rounds"])
        ms = record["ms"]
        print(
            f"  {record['system']:34} {ms['median']:10,.1f} ms"
            f"  ({ms['low']:,.1f} to {ms['high']:,.1f})  {times:5.2f} x",
            flush=True,
        )


def main() -> None:
    """Parses, runs the rows, appends their records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="+", choices=ROWS, metavar="ROW", help=", ".join(ROWS))
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME=FILE", help="of llama-1b, llama-8b"
    )
    parser.add_argument("--only", action="append", metavar="SYSTEM", help="part of a system's name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="decode steps of a turn")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "peers.jsonl")
    args = parser.parse_args()
    given = dict(pair.split("=", 1) for pair in args.model)
    env = environment(args.threads) | {"command": command("python", "bench/peers/run.py")}
    for name in args.rows:
        row = ROWS[name]
        if args.only:
            kept = tuple(s for s in row.systems if any(part in s.name for part in args.only))
            row = Row(row.name, row.model, row.work, row.tokens, row.sequences, kept)
        source = given.get(row.model) or BUILT_IN.get(row.model)
        if source is None:
            parser.error(f"{name} needs --model {row.model}=FILE; random_gguf.py writes one")
        records = run(row, sources.resolve(source), args)
        show(records)
        with args.out.open("a") as file:
            file.writelines(json.dumps(record | {"env": env}) + "\n" for record in records)


if __name__ == "__main__":
    try:
        main()
    except KvikError as error:
        sys.exit(f"{error}")
