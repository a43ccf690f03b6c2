"""AsyncEngine: the engine's steps in a thread of their own, its outputs as async streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from threading import Condition, Thread
from typing import Any

from kvik.engine.engine import Engine
from kvik.engine.request import Output, Request
from kvik.engine.uninterrupted import uninterrupted
from kvik.errors import KvikError

_Queue = asyncio.Queue[Output | BaseException]


class AsyncEngine:
    """Runs an engine for any number of asyncio tasks.

        async with AsyncEngine(engine) as running:
            async for output in running.stream("Hello", max_new=16):
                print(output.text, end="")

    A stream that is left early (a break, a cancelled task) aborts its request. An error in a step
    reaches every open stream; the engine stays usable. What ends its thread (SystemExit) ends the
    streams with KvikError and closes it.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._streams: dict[int, tuple[asyncio.AbstractEventLoop, _Queue]] = {}
        self._wake = Condition()
        self._closing = False
        self._thread = Thread(target=self._work, name="kvik engine", daemon=True)

    async def __aenter__(self) -> AsyncEngine:
        if self._closing or self._thread.is_alive():
            raise KvikError("this AsyncEngine was entered before; make another one")
        self._thread.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)
        self._fail(KvikError("the engine was closed"))

    async def stream(
        self, prompt: Request | Sequence[int] | str, **options: Any
    ) -> AsyncIterator[Output]:
        """The outputs of one request as they come; raises what ``Engine.add`` and steps raise."""
        queue: _Queue = asyncio.Queue()
        with self._wake:
            if self._closing:
                raise KvikError("the engine was closed")
            if not self._thread.is_alive():
                raise KvikError("the engine is not running yet: use it inside `async with`")
            with uninterrupted():
                number = self.engine.add(prompt, **options)
                self._streams[number] = (asyncio.get_running_loop(), queue)
                self._wake.notify()
        ended = False
        try:
            while not ended:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                ended = item.last
                yield item
        finally:
            with self._wake:
                if self._streams.pop(number, None) is not None and not ended:
                    self.engine.abort(number)
                    self._wake.notify()

    def _work(self) -> None:
        try:
            while self._awaited():
                try:
                    outputs = self.engine.step()
                except Exception as error:
                    self._fail(error)
                    continue
                with self._wake:
                    for output in outputs:
                        if output.id in self._streams:
                            self._put(output.id, output)
        except BaseException as error:
            # Nobody waits for a thread that has ended; and to a task SystemExit is no news.
            ended = KvikError(f"the engine's thread ended ({error!r}); make another AsyncEngine")
            ended.__cause__ = error
            with self._wake:
                self._closing = True
            self._fail(ended)

    def _awaited(self) -> bool:
        """Waits for something to do; False once the engine is being closed."""
        with self._wake:
            self._wake.wait_for(lambda: self._closing or self.engine.busy)
            return not self._closing

    def _fail(self, error: BaseException) -> None:
        """Ends every open stream with an error, and its request with it."""
        with self._wake:
            streams = list(self._streams)
            for number in streams:
                self._put(number, error)
            self._streams.clear()
            for number in streams:
                self.engine.abort(number)

    def _put(self, number: int, item: Output | BaseException) -> None:
        loop, queue = self._streams[number]
        with suppress(RuntimeError):  # the loop was closed without leaving the stream
            loop.call_soon_threadsafe(queue.put_nowait, item)
