"""All-reduce with gloo, and the optimizer in every rank: training without servers.

``--variant flat``: one tensor; ``buckets``: those of DistributedDataParallel, all started at once.
"""

from __future__ import annotations

import datetime
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

from torch import distributed

from bench.children import Child, call_all
from bench.peers.replica import Replica
from bench.peers.serve import Work, serve


def join(rank: int, work: Work, port: int) -> None:
    """Become one of as many ranks as a parameter server has workers."""
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=work.workers,
        timeout=datetime.timedelta(seconds=120),
    )


class Rank:
    """A process with a copy of the model."""

    def __init__(self, rank: int, work: Work, port: int) -> None:
        join(rank, work, port)
        self._replica = Replica(work)

    def steps(self, count: int) -> list[float]:
        """Return the seconds of each step."""
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            for pending in [distributed.all_reduce(bucket, async_op=True) for bucket in self._replica.buckets]:
                pending.wait()
            self._replica.optimizer.step()
            seconds.append(time.perf_counter() - started)
        return seconds


class Ranks:
    """Processes that train together.

    Parameters
    ----------
    work
        What they do.
    kind
        What each of them holds; made with its rank, the work and a port that is free.
    """

    def __init__(self, work: Work, kind: Callable[[int, Work, int], object]) -> None:
        self._stack = ExitStack()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._ranks = [self._stack.enter_context(Child(kind, rank, work, port)) for rank in range(work.workers)]
        for rank in self._ranks:
            rank.result()

    def steps(self, count: int) -> list[float]:
        """Return the seconds of each step, of every rank."""
        return [seconds for times in call_all(self._ranks, "steps", count) for seconds in times]

    def close(self) -> None:
        """End the processes."""
        self._stack.close()


if __name__ == "__main__":
    serve(lambda work: Ranks(work, Rank))
