"""crowd: what a small operation costs a server that many workers use, each over connections of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import psutil

import zmqps
from bench import models, reference
from bench.children import TIMEOUT, Child
from bench.options import json_option, keep, model_option, optimizer_option, transport_option
from bench.results import Row
from bench.setup import GRADIENT_SCALE, OPTIMIZERS, Setup
from bench.stats import Times, percentile
from bench.tables import console, new_table, seconds
from bench.transfer import check_values

WORKERS = (1, 4, 16, 64, 256)
#: Operations of all workers together in a turn, at least one of each.
OPERATIONS = 2000
#: How many of one worker are under way at once where that is measured.
WINDOW = 64


class CrowdProcess:
    """Many workers in one process: a caller's thread, a background thread and connections each.

    So two cores show what the server does: it has one, all clients share the other.
    """

    def __init__(self, address: str, setup: Setup) -> None:
        self._address, self._setup = address, setup
        self._start = models.arrays(models.find(setup.model), 1.0)
        self._gradients = models.arrays(models.find(setup.model), GRADIENT_SCALE, seed=1)
        self._stack = ExitStack()
        self._workers: list[zmqps.Worker] = []
        self._out: list[dict[str, Any]] = []
        self._pool: ThreadPoolExecutor | None = None
        self._pushes = 0

    def grow(self, number: int) -> None:
        """Connect until there are so many workers; each does one step."""
        optimizer = OPTIMIZERS[self._setup.optimizer]()
        for index in range(len(self._workers), number):
            name, transport = f"crowd-{index}", self._setup.transport
            worker = zmqps.connect(self._address, name=name, timeout=TIMEOUT, transport=transport)
            self._workers.append(self._stack.enter_context(worker))
            worker.init(self._start, optimizer=optimizer, mode="async", timeout=TIMEOUT)
            self._out.append(models.arrays(models.find(self._setup.model), 0.0))
        if self._pool is not None:
            self._pool.shutdown()
        self._pool = ThreadPoolExecutor(number)
        self.blocking(1)

    def blocking(self, rounds: int) -> tuple[float, list[float]]:
        """Let each do so many push_pulls, one by one; return the seconds of all, and of each."""

        def work(index: int) -> list[float]:
            took = []
            for _ in range(rounds):
                started = time.perf_counter()
                self._workers[index].push_pull(self._gradients, out=self._out[index], timeout=TIMEOUT)
                took.append(time.perf_counter() - started)
            return took

        elapsed, times = self._together(work)
        self._pushes += rounds * len(self._workers)
        return elapsed, [took for each in times for took in each]

    def pipelined(self, rounds: int) -> float:
        """Let each do so many push_pulls, `WINDOW` of them under way at once; return the seconds of all."""

        def work(index: int) -> None:
            worker, out = self._workers[index], self._out[index]
            for first in range(0, rounds, WINDOW):
                number = min(WINDOW, rounds - first)
                for future in [worker.push_pull_async(self._gradients, out=out) for _ in range(number)]:
                    future.result(TIMEOUT)

        self._pushes += rounds * len(self._workers)
        return self._together(work)[0]

    def _together(self, work: Callable[[int], Any]) -> tuple[float, list[Any]]:
        """Let each worker's thread work, beginning at the same moment; return how long all took, and their results."""
        assert self._pool is not None
        go = threading.Event()

        def wait_and_work(index: int) -> Any:
            go.wait(TIMEOUT)
            return work(index)

        futures = [self._pool.submit(wait_and_work, index) for index in range(len(self._workers))]
        started = time.perf_counter()
        go.set()
        results = [future.result(TIMEOUT) for future in futures]
        return time.perf_counter() - started, results

    def deviation(self) -> float:
        """Return how far the server's values are from those of all pushes, as `bench.reference.deviation`."""
        values = self._workers[0].pull(timeout=TIMEOUT)
        return reference.deviation(self._setup, self._start, self._gradients, values, self._pushes, 1)

    def close(self) -> None:
        """End all workers."""
        if self._pool is not None:
            self._pool.shutdown()
        self._stack.close()


class ThreadTime:
    """Processor time of a process from now on: of its first thread, and of all others, which are ZeroMQ's."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._before = self._now()

    def seconds(self) -> tuple[float, float]:
        """Return what all used since, and what of it the others did."""
        first, others = (now - before for now, before in zip(self._now(), self._before, strict=True))
        return first + others, others

    def _now(self) -> tuple[float, float]:
        times = {thread.id: thread.user_time + thread.system_time for thread in self._process.threads()}
        return times.pop(self._process.pid), sum(times.values())


def measure(setup: Setup, numbers: Sequence[int] = WORKERS, operations: int = OPERATIONS, turns: int = 3) -> list[Row]:
    """Let more and more workers of one process use one server; return a row for each number of them.

    Raises
    ------
    RuntimeError
        The values on the server are wrong.
    """
    rows = []
    with ExitStack() as stack:
        cluster = stack.enter_context(zmqps.LocalCluster(servers=1, limits=zmqps.Limits(heartbeat_timeout=60.0)))
        crowd = stack.enter_context(Child(CrowdProcess, cluster.address, setup))
        crowd.result()
        stack.callback(crowd.call, "close")
        for number in sorted(numbers):
            crowd.call("grow", number)
            rounds = max(1, operations // number)
            blocking = [_turn(cluster.pids["server-0"], crowd, "blocking", rounds) for _ in range(turns)]
            pipelined = [_turn(cluster.pids["server-0"], crowd, "pipelined", rounds) for _ in range(turns)]
            times = Times(tuple(took for (_, each), *_ in blocking for took in each))
            rows.append(
                Row(
                    case="crowd",
                    **{**setup.labels, "workers": number},
                    median_s=times.median,
                    p90_s=times.p90,
                    min_s=times.minimum,
                    steps=len(times.seconds),
                    extra={
                        **_costs("", rounds * number, [(elapsed, *used) for (elapsed, _), *used in blocking]),
                        **_costs("pipelined_", rounds * number, [(elapsed, *used) for elapsed, *used in pipelined]),
                    },
                )
            )
        check_values(setup, crowd)
    return rows


def _turn(pid: int, crowd: Child, method: str, rounds: int) -> tuple[Any, float, float]:
    """Return what the crowd says, the server's processor time meanwhile, and what of it ZeroMQ's thread used."""
    busy = ThreadTime(pid)
    result = crowd.call(method, rounds)
    return result, *busy.seconds()


def _costs(prefix: str, number: int, turns: list[tuple[float, ...]]) -> dict[str, float]:
    """Return the medians of some turns of so many operations, for one operation."""
    elapsed, server, sockets = ([values[i] / number for values in turns] for i in range(3))
    return {
        f"{prefix}per_s": 1 / percentile(elapsed, 50),
        f"{prefix}server_cpu_s": percentile(server, 50),
        f"{prefix}server_sockets_cpu_s": percentile(sockets, 50),
    }


def print_crowd(rows: Sequence[Row]) -> None:
    """Print what an operation costs by the number of workers."""
    table = new_table(
        "workers",
        "p50",
        "operations/s",
        "server's processor",
        "of it ZeroMQ",
        "pipelined/s",
        "server's then",
        "ZeroMQ's then",
    )
    for row in rows:
        cells = [f"{row.workers}", seconds(row.median_s)]
        for prefix in ("", "pipelined_"):
            cells.append(f"{row.extra[f'{prefix}per_s']:.0f}")
            cells += [seconds(row.extra[f"{prefix}server{part}_cpu_s"]) for part in ("", "_sockets")]
        table.add_row(*cells)
    console.print(table)


@click.command("crowd")
@model_option("1KB")
@transport_option
@optimizer_option
@click.option("--workers", "numbers", type=click.IntRange(1, 1024), multiple=True, help="How many; may be repeated.")
@click.option("--operations", type=click.IntRange(1), default=OPERATIONS, show_default=True, help="Of all, in a turn.")
@click.option("--turns", type=click.IntRange(1), default=3, show_default=True, help="Of each kind and number.")
@json_option
def command(
    model: str,
    transport: str,
    optimizer: str,
    numbers: tuple[int, ...],
    operations: int,
    turns: int,
    json_path: Path | None,
) -> None:
    """A 1 KB push_pull of 1 to 256 workers of one process: operations a second, and what one costs the server.

    The server's processor time is that of its whole process, ZeroMQ's thread included. Each worker has a caller's
    thread, a background thread and connections of its own, as if it were alone. First each does one operation after
    the other, then up to 64 are under way at once. In the end the values are compared with what numpy makes of as
    many pushes.
    """
    setup = Setup(model=model, transport=transport, optimizer=optimizer)
    rows = measure(setup, numbers or WORKERS, operations, turns)
    print_crowd(rows)
    keep(rows, json_path)
