"""Whole models pushed and pulled by real processes, beside plain sockets that move the same bytes."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import zmqps
from bench import models, reference
from bench.children import TIMEOUT, Child, call_all
from bench.device import placed
from bench.limits import PlainSockets
from bench.processes import BusyTime, resident_nbytes
from bench.results import Row, timed
from bench.setup import GRADIENT_SCALE, LEARNING_RATE, OPTIMIZERS, WARM_UP, Setup
from bench.stats import Times, network_bound
from zmqps.core.node.tracing import LONGEST_S, MAX_RING_NBYTES
from zmqps.keys.keyring import Keys
from zmqps.nodes import tracing
from zmqps.trace import merge

#: Steps of a recorded run: enough for a median, few enough to look at.
RECORDED_STEPS = 10
#: Of the values that training begins with.
START_SCALE = 1.0


class TransferWorker:
    """A worker process: one operation on the whole model, again and again.

    Parameters
    ----------
    address
        The coordinator's.
    setup
        What is trained, how.
    operation
        ``push``, ``pull``, ``push_pull``, or ``layers``: a push_pull of each parameter after the other, whose
        gradients all lie in the same memory, as where a layer's gradient is pushed as soon as it is computed.
    mode
        As `Worker.init` takes it.
    job
        The job's name.
    """

    def __init__(self, address: str, setup: Setup, operation: str, mode: str = "async", job: str = "default") -> None:
        shapes = models.find(setup.model)
        self._setup = setup
        self._mode = mode
        io_threads = setup.io_threads or 1
        self._worker = zmqps.connect(
            address, job=job, timeout=TIMEOUT, transport=setup.transport, io_threads=io_threads
        )
        self._empty_nbytes = resident_nbytes(os.getpid())
        layers = operation == "layers"
        start = placed(models.arrays(shapes, START_SCALE), setup.device)
        self._worker.init(
            start,
            optimizer=OPTIMIZERS[setup.optimizer](),
            mode=mode,
            push_codec=setup.codec,
            pull_codec=setup.pull_codec,
            timeout=TIMEOUT,
        )
        self._out: Mapping[str, Any] = start if layers else {}
        del start  # before there is anything else: memory is measured
        self._gradients = {} if layers else models.arrays(shapes, GRADIENT_SCALE, seed=1)
        self._sent = placed(self._gradients, setup.device)
        if "pull" in operation:  # else a large model has no room for unused values
            self._out = placed(models.arrays(shapes, 0.0), setup.device)
        self._pushes = 0
        self._adds = int("push" in operation or layers)
        self._work: Callable[[], Any] = {
            "push": lambda: self._worker.push(self._sent),
            "pull": lambda: self._worker.pull(out=self._out),
            "push_pull": lambda: self._worker.push_pull(self._sent, out=self._out),
            "layers": self._by_layer,
        }[operation]
        if setup.in_place:
            self._work = self._in_place(operation)
        elif setup.new and "pull" in operation:
            self._work = self._new(operation)

    def _by_layer(self) -> None:
        """Compute the gradient of one parameter after the other, of half its square, and let it be updated."""
        largest = max(self._out.values(), key=lambda value: value.nbytes)
        room = np.empty(largest.size, largest.dtype)
        for name, value in self._out.items():
            gradient = room[: value.size].reshape(value.shape)
            gradient[...] = value
            self._worker.push_pull({name: gradient}, out={name: value}, timeout=TIMEOUT)

    def check_layers(self) -> None:
        """Raise `RuntimeError` unless each step has made every value so much smaller, as `_by_layer` must."""
        for name, value in self._out.items():
            [start] = models.arrays({name: value.shape}, START_SCALE).values()
            start *= np.float32((1 - LEARNING_RATE) ** self._pushes)
            if not np.allclose(value, start, rtol=1e-5, atol=0):
                raise RuntimeError(f"the values of {name} are wrong: the benchmark is worth nothing")

    def _in_place(self, operation: str) -> Callable[[], Any]:
        """Return the operation without copies; the values of a step are let go when those of the next are there."""
        buffers = self._worker.gradient_buffers()
        for name, gradient in self._gradients.items():
            buffers[name][...] = gradient

        def pull() -> None:
            self._out = self._worker.pull(copy=False)

        def push_pull() -> None:
            self._out = self._worker.push_pull(buffers, copy=False)

        return {"push": lambda: self._worker.push(buffers), "pull": pull, "push_pull": push_pull}[operation]

    def _new(self, operation: str) -> Callable[[], Any]:
        """Return the operation with new arrays from each call, in the place of those of the last one."""

        def pull() -> None:
            self._out = self._worker.pull()

        def push_pull() -> None:
            self._out = self._worker.push_pull(self._sent)

        return {"pull": pull, "push_pull": push_pull}[operation]

    def steps(self, name: str, count: int) -> list[float]:
        """Do it so many times, beginning together with the other workers; return the seconds of each."""
        self._worker.barrier(name, timeout=TIMEOUT)
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            self._work()
            seconds.append(time.perf_counter() - started)
            self._pushes += self._adds
        return seconds

    def pipelined(self, count: int) -> float:
        """Start so many push_pulls at once and wait for all; return the seconds it took."""
        started = time.perf_counter()
        for future in [self._worker.push_pull_async(self._sent, out=self._out) for _ in range(count)]:
            future.result(TIMEOUT)
        self._pushes += count
        return time.perf_counter() - started

    def empty_nbytes(self) -> int:
        """Return how much memory this process held before there was a model."""
        return self._empty_nbytes

    def deviation(self) -> float:
        """Return how far the servers' values are from what every worker's pushes make of them (`bench.reference`)."""
        values = self._worker.pull(codec="raw", timeout=TIMEOUT)
        pushed_by = self._setup.workers if self._mode == "async" else 1
        start = models.arrays(models.find(self._setup.model), START_SCALE)  # not kept: memory is measured, too
        return reference.deviation(self._setup, start, self._gradients, values, self._pushes, pushed_by)

    def close(self) -> None:
        """Disconnect; what was recorded is written."""
        self._worker.close()


def _cluster(stack: ExitStack, setup: Setup) -> zmqps.LocalCluster:
    """Start a cluster; its keys, if it has some, are made for it, and found by the workers in the environment."""
    folder = None
    if setup.keyed:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zmqps-keys-"))) / "keys"
        zmqps.keys.create(folder)
        os.environ["ZMQPS_KEYS"] = str(folder)
        stack.callback(os.environ.pop, "ZMQPS_KEYS", None)
    threads = {} if setup.io_threads is None else {"io_threads": setup.io_threads}
    servers = zmqps.Servers(setup.servers, device=setup.device or "cpu", **threads)
    return stack.enter_context(zmqps.LocalCluster(servers, setup.workers, security=zmqps.Security(keys=folder)))


def start_workers(
    stack: ExitStack, address: str, setup: Setup, operation: str = "push_pull", mode: str = "async"
) -> list[Child]:
    """Start a setup's workers; return when all have joined the job."""
    arguments = (address, setup, operation, mode)
    workers = [stack.enter_context(Child(TransferWorker, *arguments)) for _ in range(setup.workers)]
    for worker in workers:
        worker.result()
    return workers


def check_values(setup: Setup, worker: Child) -> bool:
    """Compare what is on the servers with the reference; return whether that could be done.

    Raises
    ------
    RuntimeError
        It is wrong.
    """
    if not reference.can_check(setup):
        return False
    if (off := worker.call("deviation")) > 1:
        raise RuntimeError(
            f"the values are off by {off:.3g} times what rounding explains: the benchmark is worth nothing"
        )
    return True


def measure(operation: str, setup: Setup) -> Row:
    """Run an operation and plain sockets in turns; return what both took.

    Raises
    ------
    RuntimeError
        The values on the servers are wrong.
    """
    nbytes = setup.nbytes
    pushed, pulled = (nbytes if kind in operation else 0 for kind in ("push", "pull"))
    batch = max(1, min(50, (1 << 20) // nbytes))  # steps too short to be asked for one by one
    ours: list[float] = []
    limits: list[float] = []
    links: list[float] = []
    with ExitStack() as stack:
        cluster = _cluster(stack, setup)
        limit = stack.enter_context(PlainSockets(setup.transport, setup.servers, setup.workers, pushed, pulled))
        alone = setup.servers == setup.workers == 1
        link = limit if alone else stack.enter_context(PlainSockets(setup.transport, 1, 1, pushed, pulled))
        workers = start_workers(stack, cluster.address, setup, operation)
        busy = BusyTime([*cluster.pids.values(), *(worker.pid for worker in workers)]), BusyTime(limit.pids)
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
        checked = check_values(setup, workers[0])
    link_bytes_per_s = nbytes / Times(tuple(links)).median
    return Row(
        case=f"{operation}{setup.arrays or setup.secured}",
        **setup.labels,
        **timed(Times(tuple(ours)), Times(tuple(limits)), pushed + pulled),
        bound_s=network_bound(nbytes, setup.workers, setup.servers, link_bytes_per_s),
        extra={
            "cpu_s": cpu,  # of all processes, for a step of one worker: quieter than the clock on a busy machine
            "limit_cpu_s": limit_cpu,
            "link_gb_s": link_bytes_per_s / 1e9,
            "model_nbytes": nbytes,
            "checked": checked,
        },
    )


def record(operation: str, setup: Setup, mode: str = "async") -> merge.Trace:
    """Run some steps once more while every node records; return that."""
    with ExitStack() as stack:
        cluster = _cluster(stack, setup)
        workers = start_workers(stack, cluster.address, setup, operation, mode)
        return recorded(
            cluster.address, min(setup.steps, RECORDED_STEPS), lambda n: call_all(workers, "steps", "recorded", n)
        )


def recorded(address: str, number: int, step: Callable[[int], object]) -> merge.Trace:
    """Return what all nodes record of so many steps, after some to warm up; ``step`` does so many."""
    keys = Keys.load(os.environ["ZMQPS_KEYS"]) if "ZMQPS_KEYS" in os.environ else None
    tracing.begin(address, seconds=LONGEST_S, nbytes=MAX_RING_NBYTES, keys=keys)
    step(1)
    while not tracing.recording(address, keys=keys):
        step(1)
    step(WARM_UP + number)
    return tracing.fetch(address, keys=keys)
