"""Whole models pushed and pulled by real processes, beside plain sockets that move the same bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

import zmqps
from bench import models
from bench.children import TIMEOUT, Child, call_all
from bench.limits import PlainSockets
from bench.processes import BusyTime
from bench.results import Row, timed
from bench.stats import Times, network_bound

TRANSPORTS = ("tcp", "ipc", "shm", "auto")
OPTIMIZERS: dict[str, Callable[[], zmqps.optim.OptimizerSpec]] = {
    "sgd": lambda: zmqps.optim.sgd(LEARNING_RATE),
    "momentum": lambda: zmqps.optim.momentum(LEARNING_RATE, momentum=0.9),
    "adagrad": lambda: zmqps.optim.adagrad(LEARNING_RATE),
    "adam": lambda: zmqps.optim.adam(LEARNING_RATE),
}
LEARNING_RATE = 1e-3
GRADIENT_SCALE = 1e-2
CODEC = "raw"
#: Steps before those that count: pages get mapped, sockets find their buffer sizes.
WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Setup:
    """Who moves what, and how."""

    model: str = "resnet50"
    servers: int = 1
    workers: int = 1
    transport: str = "tcp"
    optimizer: str = "sgd"
    steps: int = 20


class TransferWorker:
    """A worker process: one operation on the whole model, again and again.

    Parameters
    ----------
    address
        The coordinator's.
    model, optimizer
        By their names.
    transport
        As `zmqps.connect` takes it.
    operation
        ``push``, ``pull`` or ``push_pull``.
    """

    def __init__(self, address: str, model: str, optimizer: str, transport: str, operation: str) -> None:
        shapes = models.find(model)
        self._worker = zmqps.connect(address, timeout=TIMEOUT, transport=transport)
        self._start = models.arrays(shapes, 1.0)
        self._worker.init(self._start, optimizer=OPTIMIZERS[optimizer](), timeout=TIMEOUT)
        self._out = models.arrays(shapes, 0.0)
        self._gradients = models.arrays(shapes, GRADIENT_SCALE, seed=1)
        self._work: Callable[[], Any] = {
            "push": lambda: self._worker.push(self._gradients),
            "pull": lambda: self._worker.pull(out=self._out),
            "push_pull": lambda: self._worker.push_pull(self._gradients, out=self._out),
        }[operation]

    def steps(self, name: str, count: int) -> list[float]:
        """Do it so many times, beginning together with the other workers; return the seconds of each."""
        self._worker.barrier(name, timeout=TIMEOUT)
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            self._work()
            seconds.append(time.perf_counter() - started)
        return seconds

    def pipelined(self, count: int) -> float:
        """Start so many push_pulls at once and wait for all; return the seconds it took."""
        started = time.perf_counter()
        for future in [self._worker.push_pull_async(self._gradients, out=self._out) for _ in range(count)]:
            future.result(TIMEOUT)
        return time.perf_counter() - started

    def error(self, pushes: int) -> float:
        """Return how far the servers' values are from where so many SGD steps of everybody lead."""
        values = self._worker.pull()
        return max(
            float(np.abs(values[name] - (start - pushes * LEARNING_RATE * self._gradients[name])).max())
            for name, start in self._start.items()
        )


def measure(operation: str, setup: Setup) -> Row:
    """Run an operation and plain sockets in turns; return what both took.

    Raises
    ------
    RuntimeError
        The values on the servers are wrong.
    """
    nbytes = models.num_bytes(models.find(setup.model))
    pushed, pulled = (nbytes if kind in operation else 0 for kind in ("push", "pull"))
    batch = max(1, min(50, (1 << 20) // nbytes))  # steps too short to be asked for one by one
    ours: list[float] = []
    limits: list[float] = []
    links: list[float] = []
    with ExitStack() as stack:
        cluster = stack.enter_context(zmqps.LocalCluster(servers=setup.servers, workers=setup.workers))
        limit = stack.enter_context(PlainSockets(setup.transport, setup.servers, setup.workers, pushed, pulled))
        alone = setup.servers == setup.workers == 1
        link = limit if alone else stack.enter_context(PlainSockets(setup.transport, 1, 1, pushed, pulled))
        arguments = cluster.address, setup.model, setup.optimizer, setup.transport, operation
        workers = [stack.enter_context(Child(TransferWorker, *arguments)) for _ in range(setup.workers)]
        for worker in workers:
            worker.result()
        processes = [*cluster.pids.values(), *(worker.pid for worker in workers)]
        busy = BusyTime(processes), BusyTime(limit.pids)
        for turn in range(WARM_UP + setup.steps):
            if turn == WARM_UP:
                for side in busy:
                    side.restart()
            measured = call_all(workers, "steps", f"step {turn}", batch)
            plain = limit.steps(batch)
            one = plain if alone else link.steps(batch)
            if turn >= WARM_UP:
                ours += [seconds for times in measured for seconds in times]
                limits += plain
                links += one
        cpu, limit_cpu = (side.seconds() / (setup.steps * batch * setup.workers) for side in busy)
        if setup.optimizer == "sgd":
            pushes = batch * (WARM_UP + setup.steps) * setup.workers if pushed else 0
            if (error := workers[0].call("error", pushes)) > 1e-3:
                raise RuntimeError(
                    f"after {pushes} pushes the values are off by {error}: the benchmark is worth nothing"
                )
    link_bytes_per_s = nbytes / Times(tuple(links)).median
    return Row(
        case=operation,
        model=setup.model,
        servers=setup.servers,
        workers=setup.workers,
        transport=setup.transport,
        optimizer=setup.optimizer,
        codec=CODEC,
        **timed(Times(tuple(ours)), Times(tuple(limits)), pushed + pulled),
        bound_s=network_bound(nbytes, setup.workers, setup.servers, link_bytes_per_s),
        extra={
            "cpu_s": cpu,  # of all processes, for a step of one worker: quieter than the clock on a busy machine
            "limit_cpu_s": limit_cpu,
            "link_gb_s": link_bytes_per_s / 1e9,
            "model_nbytes": nbytes,
        },
    )
