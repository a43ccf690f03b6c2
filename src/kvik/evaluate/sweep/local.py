"""Jobs on the cores of this machine: processes of their own, so that one that dies dies alone."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import IO, Any

from kvik.errors import KvikError
from kvik.evaluate.sweep.cells import Job, Record, Setup, record

Found = Record | BaseException | None


class Workers:
    """So many processes, each with ``setup.threads`` threads. Leave it to end them all."""

    def __init__(self, setup: Setup, count: int) -> None:
        self._setup, self._count = setup, count
        self._running: set[_Process] = set()
        self._threads: list[threading.Thread] = []
        self._lock, self._ended = threading.Lock(), threading.Event()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        with self._lock:
            for process in self._running:
                process.kill()
        for thread in self._threads:
            thread.join()

    def run(self, jobs: Sequence[Job]) -> Iterator[Record]:
        """The records of all jobs, as they come.

        A process that dies (for want of memory, say) costs the cell at hand; another goes on.
        """
        waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        found: queue.SimpleQueue[Found] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        self._threads = [
            threading.Thread(target=self._serve, args=(waiting, found), daemon=True)
            for _ in range(min(self._count, len(jobs)))
        ]
        for thread in self._threads:
            thread.start()
        left = len(self._threads)
        while left:
            item = found.get()
            if item is None:
                left -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item

    def _serve(self, waiting: queue.SimpleQueue[Job], found: queue.SimpleQueue[Found]) -> None:
        """One process after another, until there is no job left."""
        process: _Process | None = None
        try:
            while not self._ended.is_set():
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    break
                left = job
                while left.cells() and not self._ended.is_set():
                    if process is None:
                        process = self._start()
                    for item in process.work(left):
                        found.put(item)
                        left = left.without(item)
                    if left.cells():  # it died over the first of them
                        recipe, repeat = left.cells()[0]
                        reason = process.reason()
                        self._forget(process)
                        process = None
                        item = record(left.unit, recipe, repeat, error=reason)
                        found.put(item)
                        left = left.without(item)
        except BaseException as error:
            found.put(error)
        finally:
            if process is not None:
                process.close()
                self._forget(process)
            found.put(None)

    def _start(self) -> _Process:
        with self._lock:
            if self._ended.is_set():
                raise KvikError("the sweep has ended")
            process = _Process(self._setup)
            self._running.add(process)
        try:
            process.ready()
        except BaseException:
            process.kill()
            process.close()
            self._forget(process)
            raise
        return process

    def _forget(self, process: _Process) -> None:
        with self._lock:
            self._running.discard(process)


class _Process:
    """A worker process and its two pipes."""

    def __init__(self, setup: Setup) -> None:
        # Open as long as the process runs; reason() and close() end both.
        self._noise: IO[str] = tempfile.TemporaryFile(  # noqa: SIM115
            "w+", encoding="utf-8", errors="replace"
        )
        command = [sys.executable, "-m", "kvik.evaluate.sweep.worker"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._noise,
            text=True,
            encoding="utf-8",
        )
        self._setup = setup

    def ready(self) -> None:
        """Waits until the model is loaded; KvikError when it cannot be."""
        self._tell(asdict(self._setup))
        answer = self._hear()
        if answer is None:
            raise KvikError(f"a worker did not start: {self.reason()}")
        if "error" in answer:
            raise KvikError(answer["error"])

    def work(self, job: Job) -> Iterator[Record]:
        """The records of a job; fewer than its cells when the process died."""
        self._tell(job.to_json())
        while (answer := self._hear()) is not None and "record" in answer:
            yield answer["record"]

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it is dead, which the next answer tells
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def _hear(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def reason(self) -> str:
        """Why it died, in one line."""
        status = self._process.wait()
        self._noise.seek(0)
        lines = self._noise.read().strip().splitlines()
        self._close_pipes()
        if status == -9:
            return "its process was killed, most likely for want of memory: take fewer --workers"
        return lines[-1] if lines else f"its process ended with status {status}"

    def close(self) -> None:
        """Lets it end by itself."""
        self._close_pipes()
        self._process.wait()

    def kill(self) -> None:
        """Ends it now."""
        self._process.kill()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout, self._noise):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
