"""What bounds a step is known here, for it was made so; whether the sentence says it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import zmqps
from tests.net.slowlink import slowed
from tests.trace.format import violations
from zmqps.nodes.tracing import record
from zmqps.trace.bounds import Bound, bound
from zmqps.trace.merge import Trace, write
from zmqps.trace.pushes import flows, pushes

pytestmark = pytest.mark.processes


@contextmanager
def workers(
    address: str, size: int, think: list[float], optimizer: zmqps.optim.Optimizer, transport: str, mode: str
) -> Iterator[list[int]]:
    """Have workers that train all the time; each thinks so many seconds about a step."""
    over, failed = threading.Event(), []

    def train(worker: zmqps.Worker, think_s: float) -> None:
        gradients = {"w": np.ones(size, np.float32)}
        try:
            with worker:
                worker.init(gradients, optimizer=optimizer, mode=mode)
                while not over.is_set():
                    over.wait(think_s)
                    worker.push_pull(gradients)
        except zmqps.PSError as error:  # the others have gone: the step that it waits for has no end
            if not over.is_set():
                failed.append(error)

    joined = [zmqps.connect(address, transport=transport) for _ in think]
    ranks = [worker.rank for worker in joined]
    threads = [threading.Thread(target=train, args=pair) for pair in zip(joined, think, strict=True)]
    for thread in threads:
        thread.start()
    try:
        yield ranks
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failed


def traced(address: str, steps: int = 8) -> tuple[Trace, Bound]:
    """Return the trace of some steps, and what is said to bound them."""
    trace = record(address, seconds=60.0, steps=steps)
    found = bound(trace)
    assert found is not None
    return trace, found


def test_a_worker_that_thinks_long_is_named_as_the_straggler(tmp_path: Path) -> None:
    with zmqps.LocalCluster(
        zmqps.Servers(kernels="numpy"), workers=3, limits=zmqps.Limits(heartbeat_timeout=60.0)
    ) as cluster:
        with workers(cluster.address, 1000, [0.0, 0.2, 0.0], zmqps.optim.sgd(0.1), "auto", "sync") as ranks:
            trace, found = traced(cluster.address)
    assert (found.kind, found.worker) == ("straggler", f"worker {ranks[1]}"), found.text
    assert found.took_s > 0.1
    write(tmp_path / "trace.json", trace, flows=list(flows(pushes(trace))))
    assert violations(tmp_path / "trace.json") == []


def test_a_script_that_thinks_long_is_bound_by_compute() -> None:
    with zmqps.LocalCluster(zmqps.Servers(kernels="numpy"), limits=zmqps.Limits(heartbeat_timeout=60.0)) as cluster:
        with workers(cluster.address, 1000, [0.2], zmqps.optim.sgd(0.1), "auto", "async"):
            _, found = traced(cluster.address, steps=20)  # a mean, in which a second of the machine's own is little
    assert found.kind == "compute", found.text
    assert 0.2 <= found.took_s <= found.step_s
    assert found.took_s == pytest.approx(0.2, abs=0.1)


def test_a_slow_wire_is_named_with_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        zmqps.LocalCluster(zmqps.Servers(kernels="numpy"), limits=zmqps.Limits(heartbeat_timeout=60.0)) as cluster,
        slowed(monkeypatch, 10e6),
    ):
        with workers(cluster.address, 250_000, [0.0], zmqps.optim.sgd(0.1), "tcp", "async"):
            _, found = traced(cluster.address)
    assert found.kind == "wire", found.text
    assert found.nbytes == pytest.approx(2e6, rel=0.1)
    assert 0.15 < found.took_s < found.step_s  # 1 MB each way at 10 MB/s, one after the other


def test_an_update_that_takes_long_is_named() -> None:
    with zmqps.LocalCluster(zmqps.Servers(kernels="numpy"), limits=zmqps.Limits(heartbeat_timeout=60.0)) as cluster:
        with workers(cluster.address, 4_000_000, [0.0], zmqps.optim.adam(1e-3), "auto", "async"):
            _, found = traced(cluster.address, steps=40)  # a second of the machine's own is not the most of it
    assert found.kind == "apply", found.text
