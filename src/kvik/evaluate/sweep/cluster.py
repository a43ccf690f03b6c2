"""Jobs on a Ray cluster (Moritz et al. 2018, arXiv 1712.05889): an actor for each loaded model."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from kvik.errors import KvikError
from kvik.evaluate.sweep.cells import Bench, Job, Record, Setup, record


class Cluster:
    """Actors that take ``setup.threads`` cores each. ``address`` None starts a cluster here."""

    def __init__(self, setup: Setup, address: str | None, count: int | None) -> None:
        self._setup = setup
        if address is None:  # a busy machine takes longer than Ray waits for its own parts
            os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")
        try:
            import ray
        except ModuleNotFoundError:
            raise KvikError("ray is not installed: pip install 'kvik[ray]'") from None
        self._ray: Any = ray
        if address is not None:
            _check_there(address)
        passed = {k: v for k, v in os.environ.items() if k.startswith("KVIK_")}
        try:
            self._ray.init(
                address=address,
                log_to_driver=False,
                configure_logging=False,
                include_dashboard=False if address is None else None,
                runtime_env={"env_vars": passed},
            )
        except Exception as error:  # Ray raises whatever it likes, plain Exception too
            where = address or "this machine"
            raise KvikError(
                f"no Ray cluster at {where}: {error} (a cluster that `ray start` brought up "
                "can be given as --ray ADDRESS)"
            ) from None
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        self._count = count or max(1, cores // setup.threads)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()

    def _actor(self) -> Any:
        remote = self._ray.remote(num_cpus=self._setup.threads)(Bench)
        return remote.remote(self._setup)

    def run(self, jobs: Sequence[Job]) -> Iterator[Record]:
        """The records of all jobs, as they come; an actor that dies costs the cell at hand."""
        ray, waiting = self._ray, list(reversed(jobs))
        busy: dict[Any, tuple[Any, Job]] = {}  # stream of records -> actor, what is left of the job

        def start(actor: Any, job: Job) -> None:
            stream = actor.work.options(num_returns="streaming").remote(job)
            busy[stream] = (actor, job)

        for _ in range(min(self._count, len(waiting))):
            start(self._actor(), waiting.pop())
        while busy:
            ready, _ = ray.wait(list(busy), num_returns=1, fetch_local=False)
            stream = ready[0]
            actor, left = busy[stream]
            try:
                item: Record | None = ray.get(next(stream))
            except StopIteration:
                item = None
            except (ray.exceptions.RayTaskError, ray.exceptions.RayActorError) as error:
                cause = getattr(error, "cause", None)
                if isinstance(cause, KvikError):
                    raise cause from None
                recipe, repeat = left.cells()[0]
                reason = str(cause or error).strip().splitlines()[-1]
                item = record(left.unit, recipe, repeat, error=reason)
                left = left.without(item)
                del busy[stream]
                yield item
                if left.cells():
                    start(self._actor(), left)
                elif waiting:
                    start(self._actor(), waiting.pop())
                continue
            if item is not None:
                busy[stream] = (actor, left.without(item))
                yield item
                continue
            del busy[stream]
            if waiting:
                start(actor, waiting.pop())


def _check_there(address: str) -> None:
    """KvikError at once where nobody listens: Ray itself tries for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        if address == "auto":
            return
        raise KvikError(f"--ray {address} is no address: give HOST:PORT, as `ray start` prints it")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise KvikError(f"no Ray cluster at {address}: {error}") from None
