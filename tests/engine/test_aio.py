"""Requests of asyncio tasks: streams side by side, left early, closed, failing."""

from __future__ import annotations

import asyncio

import pytest
from tests.engine.common import prompt, whole
from tests.engine.test_engine import FAULTS, PLAIN, Faulty, raises

from kvik.engine.aio import AsyncEngine
from kvik.engine.engine import Engine
from kvik.errors import KvikError


def test_streams_give_what_generate_gives() -> None:
    """Ten at once, token by token, on one engine."""
    prompts = [prompt(20 + i, i) for i in range(10)]
    want = Engine(PLAIN, memory="8MiB").generate(prompts, max_new=8)

    async def collect(running: AsyncEngine, ids: tuple[int, ...]) -> list[int]:
        return [t async for output in running.stream(ids, max_new=8) for t in output.tokens]

    async def main() -> list[list[int]]:
        async with AsyncEngine(Engine(PLAIN, memory="8MiB")) as running:
            return await asyncio.gather(*(collect(running, ids) for ids in prompts))

    assert asyncio.run(main()) == [c.samples[0].tokens for c in want]


def test_a_stream_left_early_frees_its_pages() -> None:
    """A break and a cancelled task abort their requests; others go on."""
    engine = Engine(PLAIN, memory="8MiB")

    async def forever(running: AsyncEngine) -> None:
        async for _ in running.stream(prompt(20, 1), max_new=1500):
            pass

    async def main() -> None:
        async with AsyncEngine(engine) as running:
            task = asyncio.create_task(forever(running))
            stream = running.stream(prompt(20), max_new=1500)
            async for output in stream:
                assert output.finish is None
                break
            await stream.aclose()
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            other = [output async for output in running.stream(prompt(5), max_new=3)]
            assert other[-1].finish == "length"
            while engine.busy:
                await asyncio.sleep(0.01)

    asyncio.run(main())
    assert engine.stats().pool.used == 0
    assert whole(engine)


def test_an_error_in_a_step_reaches_every_stream() -> None:
    """And the engine serves the next request."""
    engine = Engine(Faulty(PLAIN.name, PLAIN.spec, PLAIN.decoder), memory="8MiB")

    async def drain(running: AsyncEngine, seed: int) -> None:
        async for _ in running.stream(prompt(9, seed), max_new=50):
            pass

    async def main() -> None:
        async with AsyncEngine(engine) as running:
            FAULTS.extend([lambda x: x, raises(MemoryError("no memory"))])
            tasks = [asyncio.create_task(drain(running, seed)) for seed in range(3)]
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(r, MemoryError) for r in results)
            await drain(running, 7)

    asyncio.run(main())
    assert whole(engine)


def test_closing_ends_open_streams() -> None:
    """With an error in one line, not a hang; a closed engine takes nothing more."""

    async def main() -> None:
        running = AsyncEngine(Engine(PLAIN, memory="8MiB"))
        async with running:
            stream = running.stream(prompt(9), max_new=2000)
            await anext(stream)
        with pytest.raises(KvikError, match="closed"):
            async for _ in stream:
                pass
        with pytest.raises(KvikError, match="closed"):
            await anext(running.stream(prompt(9)))

    asyncio.run(main())


def test_a_refusal_is_raised_where_it_was_asked() -> None:
    async def main() -> None:
        async with AsyncEngine(Engine(PLAIN, memory="8MiB")) as running:
            with pytest.raises(KvikError, match="empty"):
                await anext(running.stream(()))

    asyncio.run(main())


def test_a_stream_needs_a_running_engine() -> None:
    """Before it is entered, and a second time: one clear error and no hang."""

    async def main() -> None:
        running = AsyncEngine(Engine(PLAIN, memory="8MiB"))
        with pytest.raises(KvikError, match="async with"):
            await anext(running.stream(prompt(5)))
        async with running:
            with pytest.raises(KvikError, match="before"):
                await running.__aenter__()
        with pytest.raises(KvikError, match="before"):
            await running.__aenter__()

    asyncio.run(main())


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
def test_what_ends_the_thread_ends_the_streams(error: BaseException) -> None:
    """With one clear error instead of a hang; nothing more is taken."""
    engine = Engine(Faulty(PLAIN.name, PLAIN.spec, PLAIN.decoder), memory="8MiB")

    async def main() -> None:
        async with AsyncEngine(engine) as running:
            FAULTS.append(raises(error))
            with pytest.raises(KvikError, match="thread ended"):
                async with asyncio.timeout(60):
                    await anext(running.stream(prompt(9), max_new=5))
            with pytest.raises(KvikError, match="closed"):
                await anext(running.stream(prompt(9)))

    asyncio.run(main())
    FAULTS.clear()
    assert whole(engine)
    assert not engine.scheduler.running
