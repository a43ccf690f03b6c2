"""Reproduces published figures of other systems' caches, with kvik's beside them.

    bench/baselines/install_quantized_caches.sh     # transformers, quanto, hqq
    bench/peers/install_llama.sh
    python bench/baselines/reproduce.py quantized
    python bench/baselines/reproduce.py streaming

``quantized``: 2,048 tokens of context, then 512 teacher-forced tokens in chunks of 32, at three
offsets of the text. ``streaming``: two texts of 4,096 tokens through a budget of 256. Every cache
is set against the full cache of the same system, on the same tokens. A system is a process of its
own in its own environment; one that is missing is left out, and said to be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from caches import BUDGET, QUANTIZED, REFERENCES, STREAMS, WORKERS, Cache, Peer, Stream
from noise import Sample, figures, noise

from kvik.errors import KvikError
from kvik.evaluate.metrics import Rows, score
from kvik.evaluate.provenance import environment
from kvik.evaluate.text import library_text, windows
from kvik.machine import usable_cores
from kvik.models import sources
from kvik.models.tokenizer import Tokenizer

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "peers"))
from process import Process, python_of  # noqa: E402

STEP = 128  # rows of logits that are scored at once
Record = dict[str, Any]


@dataclass(frozen=True)
class Protocol:
    """How much of the text is used, and how it is cut. The defaults are the published ones."""

    context: int = 2048
    scored: int = 512
    chunk: int = 32
    offsets: int = 3
    length: int = 4096
    texts: int = 2
    positions: int = 120


@dataclass(frozen=True)
class Text:
    """Windows of the text as token ids, and where each begins."""

    starts: list[int]
    ids: list[list[int]]

    @staticmethod
    def of(model: Path, length: int, count: int) -> Text:
        """``count`` runs of ``length`` tokens of the library's text, evenly spread."""
        ids = Tokenizer.from_path(model).encode(library_text(), special=False)
        places = windows(range(len(ids)), length, count, what="the text")
        return Text([place[0] for place in places], [[ids[i] for i in place] for place in places])


@contextlib.contextmanager
def opened(peer: Peer, model: Path, threads: int) -> Iterator[tuple[Process, dict[str, str]]]:
    """A worker with the model loaded, and its versions; KvikError where that cannot be had."""
    python = python_of(peer)
    if python is None:
        raise KvikError(f"{peer} is not installed")
    worker = Process(peer, python, HERE / WORKERS[peer], threads)
    try:
        yield worker, worker.ask("open", model=str(model), threads=threads)["versions"]
    finally:
        worker.close()


def compared(
    full: Path, ours: Path, targets: Sequence[int], at: Sequence[int] | None = None
) -> Sample:
    """Scores a file of logits against the full cache's.

    ``at`` are the rows of ``full`` that ``ours`` has, where it has not all of them.
    """
    reference, rows = np.load(full, mmap_mode="r"), np.load(ours, mmap_mode="r")
    at = np.arange(len(rows)) if at is None else np.asarray(at)
    wanted = np.asarray(targets)
    parts, dense = [], []
    for low in range(0, len(at), STEP):
        here = at[low : low + STEP]
        theirs = reference[here]
        parts.append(score(theirs, rows[low : low + STEP], wanted[here]))
        dense.append(score(theirs, theirs, wanted[here]))
    found = Rows.join(parts)
    return Sample(found.kl, found.agree, found.nll, Rows.join(dense).nll)


def bits(peer: Peer, found: Record, full: Record) -> float:
    """Bits an element of K and V after the context.

    A peer may count a little beside K and V for every token, the same in its full cache, which
    has a known number of bits an element.
    """
    return REFERENCES[peer][1] + 8 * (found["bytes"] - full["bytes"]) / full["elements"]


def quantized(
    peer: Peer, caches: Sequence[Cache], model: Path, text: Text, protocol: Protocol, threads: int
) -> Iterator[Record]:
    """One record for each cache of one system that could be run."""
    samples: dict[Cache, list[Sample]] = {cache: [] for cache in caches}
    facts: dict[Cache, Record] = {}
    with opened(peer, model, threads) as (worker, versions), tempfile.TemporaryDirectory() as name:
        full_file, file = Path(name) / "full.npy", Path(name) / "ours.npy"
        for number, ids in enumerate(text.ids):
            asked = {"ids": ids[:-1], "context": protocol.context, "chunk": protocol.chunk}
            targets = ids[protocol.context + 1 :]
            full = worker.ask("forced", **asked, cache=REFERENCES[peer][0], out=str(full_file))
            for cache in list(samples):
                start = time.perf_counter()
                try:
                    found = worker.ask("forced", **asked, cache=cache.settings, out=str(file))
                    part = compared(full_file, file, targets)
                except KvikError as error:
                    print(f"  {cache.name}: {error}; left out", flush=True)
                    del samples[cache]
                    continue
                samples[cache].append(part)
                facts[cache] = {"bits": bits(peer, found, full), "bytes": found["bytes"]}
                seconds = time.perf_counter() - start
                say(f"{cache.name}, offset {number + 1}", part, seconds)
    for cache, parts in samples.items():
        n = cache.published.n if cache.published else None
        shared = {"part": "quantized", "cache": cache.name, "system": peer, "versions": versions}
        protocols = {"context": protocol.context, "chunk": protocol.chunk, "starts": text.starts}
        yield shared | protocols | facts[cache] | summary(parts, n)


def say(name: str, part: Sample, seconds: float) -> None:
    """A line for whoever waits."""
    of = figures(part)
    print(f"  {name}: KL {of['kl']:.5f}, top-1 {of['top1']:.3f}  ({seconds:.0f} s)", flush=True)


def summary(parts: Sequence[Sample], n: int | None = None, block: int = 32) -> Record:
    """Figures, their intervals, and those of every offset; ``n``: tokens behind a published one."""
    whole, around = Sample.join(parts), noise(parts, n, block=block)
    return {
        "n": len(whole.kl),
        "block": block,
        "figures": figures(whole),
        "interval": around.interval,
        "other_text": {"n": around.n, **around.other_text},
        "by_offset": [figures(part) for part in parts],
        "ppl": float(np.exp(whole.nll.mean())),
        "ppl_full": float(np.exp(whole.full_nll.mean())),
    }


def streaming(
    peer: Peer, streams: Sequence[Stream], model: Path, text: Text, protocol: Protocol, threads: int
) -> Iterator[Record]:
    """One record for each cache and set of positions: all past the budget, or some of them."""
    last = protocol.length - 1
    every = list(range(BUDGET, last))
    some = [int(i) for i in np.linspace(BUDGET, last - 1, protocol.positions)]
    early = [i for i in every if i < 2 * BUDGET]
    samples: dict[tuple[str, str], list[Sample]] = {}
    with opened(peer, model, threads) as (worker, versions), tempfile.TemporaryDirectory() as name:
        full_file, file = Path(name) / "full.npy", Path(name) / "ours.npy"
        for number, ids in enumerate(text.ids):
            targets = [*ids[1:], 0]
            worker.ask("streamed", ids=ids, cache=REFERENCES[peer][0], out=str(full_file))
            for stream in streams:
                start = time.perf_counter()
                if stream.settings is None:
                    worker.ask("recomputed", ids=ids, at=some, budget=BUDGET, out=str(file))
                    found = {"some": compared(full_file, file, targets, some)}
                else:
                    worker.ask("streamed", ids=ids, cache=stream.settings, out=str(file))
                    whole = compared(full_file, file, targets)
                    places = {"all": every, "some": some, "early": early}
                    found = {key: whole.take(np.asarray(at)) for key, at in places.items()}
                for key, part in found.items():
                    samples.setdefault((stream.name, key), []).append(part)
                seconds = time.perf_counter() - start
                say(f"{stream.name}, text {number + 1}", next(iter(found.values())), seconds)
    for (stream_name, key), parts in samples.items():
        shared = {"part": "streaming", "cache": stream_name, "system": peer, "versions": versions}
        shared |= {"budget": BUDGET, "length": protocol.length, "positions": key}
        # Positions that are far from each other are blocks of their own.
        yield shared | {"starts": text.starts} | summary(parts, block=1 if key == "some" else 32)


def chosen(many: Iterable[Any], only: Sequence[str] | None) -> list[Any]:
    """Those whose system or name has one of the given parts."""
    return [
        one for one in many if not only or any(part in f"{one.peer} {one.name}" for part in only)
    ]


def main() -> None:
    """Runs one part, system after system, and appends the records of each as it ends."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("quantized", "streaming"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--only", action="append", metavar="PART", help="of a system or a cache")
    for name, value in asdict(Protocol()).items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{value} unless given")
    parser.add_argument("--threads", type=int, default=min(2, usable_cores()))
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "baselines.jsonl")
    args = parser.parse_args()
    env = environment(args.threads) | {"command": shlex.join(["python", *sys.argv])}
    protocol = Protocol(**{name: getattr(args, name) for name in asdict(Protocol())})
    model = sources.resolve(args.model)
    if args.part == "quantized":
        size, work, many = protocol.context + protocol.scored + 1, quantized, QUANTIZED
        text = Text.of(model, size, protocol.offsets)
    else:
        work, many = streaming, STREAMS
        text = Text.of(model, protocol.length, protocol.texts)
    run = int(time.time())
    for peer in WORKERS:
        wanted = [one for one in chosen(many, args.only) if one.peer == peer]
        if not wanted:
            continue
        print(peer, flush=True)
        try:
            records = list(work(peer, wanted, model, text, protocol, args.threads))
        except KvikError as error:
            print(f"  {error}; left out", flush=True)
            continue
        with args.out.open("a") as file:
            for record in records:
                line = {"bench": "baselines", "run": run, "model": args.model, **record, "env": env}
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    try:
        main()
    except KvikError as error:
        sys.exit(f"{error}")
