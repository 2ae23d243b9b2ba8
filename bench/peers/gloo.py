"""All-reduce with gloo, and the optimizer in every rank: training without servers."""

from __future__ import annotations

import datetime
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import distributed

from bench import models
from bench.children import Child, call_all
from bench.peers.serve import GRADIENT_SCALE, LEARNING_RATE, Work, serve

#: As DistributedDataParallel has it.
BUCKET_NBYTES = 25 << 20


def join(rank: int, work: Work, port: int) -> None:
    """Become one of as many ranks as a parameter server would have servers and workers."""
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=work.servers + work.workers,
        timeout=datetime.timedelta(seconds=120),
    )


class Rank:
    """A process with a copy of the model."""

    def __init__(self, rank: int, work: Work, port: int) -> None:
        join(rank, work, port)
        size = models.num_elements(work.shapes)
        flat = torch.ones(size)
        gradient = torch.full((size,), GRADIENT_SCALE)
        self._buckets = gradient.split(BUCKET_NBYTES // 4)
        sizes = [models.num_elements({name: shape}) for name, shape in work.shapes.items()]
        parameters = [torch.nn.Parameter(part) for part in flat.split(sizes)]
        for parameter, part in zip(parameters, gradient.split(sizes), strict=True):
            parameter.grad = part
        optimizers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        self._optimizer = optimizers[work.optimizer](parameters, lr=LEARNING_RATE, fused=True)

    def steps(self, count: int) -> list[float]:
        """Return the seconds of each step."""
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            for pending in [distributed.all_reduce(bucket, async_op=True) for bucket in self._buckets]:
                pending.wait()
            self._optimizer.step()
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
        self._workers = work.workers
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._ranks = [
            self._stack.enter_context(Child(kind, rank, work, port)) for rank in range(work.servers + work.workers)
        ]
        for rank in self._ranks:
            rank.result()

    def steps(self, count: int) -> list[float]:
        """Return the seconds of each step, of as many ranks as there are workers."""
        times = call_all(self._ranks, "steps", count)[: self._workers]
        return [seconds for rank in times for seconds in rank]

    def close(self) -> None:
        """End the processes."""
        self._stack.close()


if __name__ == "__main__":
    serve(lambda work: Ranks(work, Rank))
