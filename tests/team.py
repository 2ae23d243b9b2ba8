"""Workers that train together, as threads of the test: each with its own connection to real servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

import zmqps
from tests.pace import allow
from zmqps.client.requests import Params

T = TypeVar("T")

#: Seconds that any single wait may take on a busy machine.
PATIENCE = allow(20.0)


class Team:
    """Workers of one job, by rank.

    Parameters
    ----------
    address
        The coordinator's.
    size
        How many.
    params, options
        Of `zmqps.Worker.init`.
    """

    def __init__(self, address: str, size: int, params: Mapping[str, Any], **options: Any) -> None:
        self.workers: Sequence[zmqps.Worker] = []
        self._threads = ThreadPoolExecutor(size)
        try:
            connected = list(self._threads.map(lambda _: zmqps.connect(address, timeout=PATIENCE), range(size)))
            self.workers = sorted(connected, key=lambda worker: worker.rank)
            self.all(lambda worker: worker.init(params, timeout=PATIENCE, **options))
        except BaseException:
            self.close()
            raise

    def all(self, do: Callable[[zmqps.Worker], T]) -> list[T]:
        """Let every worker do something, at the same time; return what each returned, by rank."""
        futures = [self._threads.submit(do, worker) for worker in self.workers]
        return [future.result() for future in futures]

    def step(self, gradients: Callable[[int], Mapping[str, Any]]) -> list[Params]:
        """Let every worker push the gradients of its rank, then pull; return what each pulled."""

        def push_and_pull(worker: zmqps.Worker) -> Params:
            worker.push(gradients(worker.rank), timeout=PATIENCE)
            return worker.pull(timeout=PATIENCE)

        return self.all(push_and_pull)

    def close(self) -> None:
        """Close all connections."""
        for worker in self.workers:
            worker.close()
        self._threads.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
