"""Reproduces published figures of other systems' caches, with kvik's beside them.

    bench/baselines/install_quantized_caches.sh     # transformers, quanto, hqq
    bench/peers/install_llama.sh
    python bench/baselines/reproduce.py quantized
    python bench/baselines/reproduce.py streaming

``quantized``: 2,048 tokens of context, then 512 teacher-forced tokens in chunks of 32, at three
offsets of the text. ``streaming``: two texts of 4,096 tokens through a budget of 256. Every cache
is set against the full cache of the same system, on the same tokens. A system is a process of its
own in its own environment; one that is missing is left out, and said to be. Finished cells are
kept in out/baselines: the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from caches import BUDGET, QUANTIZED, REFERENCES, STREAMS, WORKERS, Cache, Peer, Stream
from cells import Cells
from noise import Sample, figures, noise
from numpy.typing import NDArray

from kvik.errors import KvikError
from kvik.evaluate.metrics import Rows, log_softmax, score
from kvik.evaluate.provenance import command, environment
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

    @property
    def cell(self) -> dict[str, int]:
        """What matters to a single cell: not how many there are."""
        return {
            name: value for name, value in vars(self).items() if name not in ("offsets", "texts")
        }

    @property
    def some(self) -> list[int]:
        """Evenly spread positions past the budget."""
        return [int(i) for i in np.linspace(BUDGET, self.length - 2, self.positions)]


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


class Worker(Process):
    """A system with the model loaded, and its versions."""

    def __init__(self, peer: Peer, python: Path, model: Path, threads: int) -> None:
        super().__init__(peer, python, HERE / WORKERS[peer], threads)
        try:
            self.versions = self.ask("open", model=str(model), threads=threads)["versions"]
        except KvikError:
            self.close()
            raise


@contextlib.contextmanager
def opened(peer: Peer, model: Path, threads: int) -> Iterator[Worker]:
    """A worker; KvikError where it cannot be had."""
    python = python_of(peer)
    if python is None:
        raise KvikError(f"{peer} is not installed")
    worker = Worker(peer, python, model, threads)
    try:
        yield worker
    finally:
        worker.close()


@dataclass(frozen=True)
class Full:
    """The logits ``[T, vocab]`` that a system's full cache gives, and the tokens that came."""

    logits: Any
    targets: NDArray[np.int64]
    nll: NDArray[np.float64]

    @staticmethod
    def of(path: Path, targets: Sequence[int]) -> Full:
        """Reads a file of logits, which stays on the disk."""
        logits, wanted = np.load(path, mmap_mode="r"), np.asarray(targets)
        parts = [
            -log_softmax(logits[low : low + STEP])[np.arange(len(here)), here]
            for low in range(0, len(logits), STEP)
            for here in (wanted[low : low + STEP],)
        ]
        return Full(logits, wanted, np.concatenate(parts))

    def against(self, path: Path, at: Sequence[int] | None = None) -> Sample:
        """Scores a file of logits of rows ``at``, or of all."""
        rows = np.load(path, mmap_mode="r")
        chosen = np.arange(len(rows)) if at is None else np.asarray(at)
        parts = []
        for low in range(0, len(chosen), STEP):
            here = chosen[low : low + STEP]
            parts.append(score(self.logits[here], rows[low : low + STEP], self.targets[here]))
        found = Rows.join(parts)
        return Sample(found.kl, found.agree, found.nll, self.nll[chosen])


def bits(peer: Peer, found: Record, full: Record) -> float:
    """Bits an element of K and V after the context.

    A peer may count a little beside K and V for every token, the same in its full cache, which
    has a known number of bits an element.
    """
    return REFERENCES[peer][1] + 8 * (found["bytes"] - full["bytes"]) / full["elements"]


@dataclass(frozen=True)
class Run:
    """What all systems get: the model, the text and how it is used."""

    model: Path
    text: Text
    protocol: Protocol
    threads: int
    cells: Cells
    commit: str | None

    def key(self, one: Cache | Stream, start: int) -> Record:
        """All that a cell depends on, but the versions and the machine."""
        what = {"peer": one.peer, "settings": one.settings, "model": self.model.name}
        return what | {"start": start, "protocol": self.protocol.cell}

    def facts(self, worker: Worker) -> Record:
        """What made a cell: it may be older than the run that needs it."""
        return {"versions": worker.versions, "commit": self.commit}

    def missing(self, many: Sequence[Any]) -> Iterator[tuple[int, list[int], list[Any]]]:
        """Of every text its start, its tokens and what still has to be run on it."""
        for start, ids in zip(self.text.starts, self.text.ids, strict=True):
            left = [one for one in many if self.cells.find(self.key(one, start)) is None]
            if left:
                yield start, ids, left

    def done(self, one: Any) -> list[tuple[Sample, Record]] | None:
        """The cells of one cache, a text each; None unless it has all of them."""
        found = [self.cells.find(self.key(one, start)) for start in self.text.starts]
        return None if None in found else [cell for cell in found if cell]


def each_text(
    run: Run, peer: Peer, many: Sequence[Any]
) -> Iterator[tuple[Worker, Path, int, list[int], list[Any]]]:
    """A worker, a folder for its logits, and what has to be run on a text that begins somewhere."""
    with contextlib.ExitStack() as stack:
        worker = None
        for start, ids, left in run.missing(many):
            worker = worker or stack.enter_context(opened(peer, run.model, run.threads))
            with tempfile.TemporaryDirectory() as folder:
                yield worker, Path(folder), start, ids, left


def run_quantized(run: Run, peer: Peer, caches: Sequence[Cache]) -> None:
    """Runs the caches of one system that have not been run."""
    for worker, folder, start, ids, left in each_text(run, peer, caches):
        whole, file = folder / "full.npy", folder / "ours.npy"
        asked = {"ids": ids[:-1], "context": run.protocol.context, "chunk": run.protocol.chunk}
        facts = worker.ask("forced", **asked, cache=REFERENCES[peer][0], out=str(whole))
        full = Full.of(whole, ids[run.protocol.context + 1 :])
        for cache in left:
            since = time.perf_counter()
            try:
                found = worker.ask("forced", **asked, cache=cache.settings, out=str(file))
                part = full.against(file)
            except KvikError as error:
                print(f"  {cache.name}: {error}; left out", flush=True)
                continue
            size = {"bits": bits(peer, found, facts), "bytes": found["bytes"]}
            run.cells.keep(run.key(cache, start), part, size | run.facts(worker))
            say(f"{cache.name}, from {start}", part, time.perf_counter() - since)


def of_quantized(run: Run, caches: Sequence[Cache]) -> Iterator[Record]:
    """One record for each cache that has run on every text."""
    for cache in caches:
        if cells := run.done(cache):
            parts = [part for part, _ in cells]
            n = cache.published.n if cache.published else None
            shared = {"part": "quantized", "cache": cache.name, "system": cache.peer}
            shared |= {"context": run.protocol.context, "chunk": run.protocol.chunk}
            size = {name: cells[-1][1][name] for name in ("bits", "bytes")}
            yield shared | size | origin(run, cells) | summary(parts, n)


def origin(run: Run, cells: Sequence[tuple[Sample, Record]]) -> Record:
    """Where in the text the cells begin and what made them."""
    commits = sorted({facts.get("commit") or "unknown" for _, facts in cells})
    return {"starts": run.text.starts, "versions": cells[-1][1]["versions"], "commits": commits}


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


def run_streaming(run: Run, peer: Peer, streams: Sequence[Stream]) -> None:
    """Runs the streams of one system that have not been run."""
    dense, some = REFERENCES[peer][0], run.protocol.some
    for worker, folder, start, ids, left in each_text(run, peer, streams):
        whole, file = folder / "full.npy", folder / "ours.npy"
        worker.ask("streamed", ids=ids, cache=dense, out=str(whole))
        full = Full.of(whole, [*ids[1:], 0])
        for stream in left:
            since = time.perf_counter()
            if stream.settings is None:
                worker.ask("recomputed", ids=ids, at=some, budget=BUDGET, out=str(file))
                part = full.against(file, some)
            elif stream.settings == dense:
                part = full.against(whole)
            else:
                worker.ask("streamed", ids=ids, cache=stream.settings, out=str(file))
                part = full.against(file)
            run.cells.keep(run.key(stream, start), part, run.facts(worker))
            say(f"{stream.name}, from {start}", part, time.perf_counter() - since)


def of_streaming(run: Run, streams: Sequence[Stream]) -> Iterator[Record]:
    """One record for each cache and set of positions: all past the budget, or some of them."""
    every = range(BUDGET, run.protocol.length - 1)
    places = {"all": every, "some": run.protocol.some, "early": every[:BUDGET]}
    for stream in streams:
        cells = run.done(stream) or []
        for name, at in places.items() if cells else ():
            parts = [part for part, _ in cells]
            if stream.settings is not None:
                parts = [part.take(np.asarray(at)) for part in parts]
            elif name != "some":
                continue
            shared = {"part": "streaming", "cache": stream.name, "system": stream.peer}
            shared |= {"budget": BUDGET, "length": run.protocol.length, "positions": name}
            # Positions that are far from each other are blocks of their own.
            yield shared | origin(run, cells) | summary(parts, block=1 if name == "some" else 32)


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
    parser.add_argument("--cells", type=Path, default=Path("out/baselines"), help="finished ones")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "baselines.jsonl")
    args = parser.parse_args()
    env = environment(args.threads) | {"command": command("python", "bench/baselines/reproduce.py")}
    protocol = Protocol(**{name: getattr(args, name) for name in asdict(Protocol())})
    model = sources.resolve(args.model)
    if args.part == "quantized":
        text = Text.of(model, protocol.context + protocol.scored + 1, protocol.offsets)
    else:
        text = Text.of(model, protocol.length, protocol.texts)
    many: Any = QUANTIZED if args.part == "quantized" else STREAMS
    run = Run(model, text, protocol, args.threads, Cells(args.cells), env["commit"])
    measure, records = PARTS[args.part]
    for peer in WORKERS:
        wanted = [one for one in chosen(many, args.only) if one.peer == peer]
        if not wanted:
            continue
        print(peer, flush=True)
        try:
            measure(run, peer, wanted)
        except KvikError as error:
            print(f"  {error}; left out", flush=True)
        made = list(records(run, wanted))
        with args.out.open("a") as file:
            for record in made:
                line = {"bench": "baselines", "model": args.model, **record, "env": env}
                file.write(json.dumps(line) + "\n")


PARTS: dict[str, Any] = {
    "quantized": (run_quantized, of_quantized),
    "streaming": (run_streaming, of_streaming),
}

if __name__ == "__main__":
    try:
        main()
    except KvikError as error:
        sys.exit(f"{error}")
