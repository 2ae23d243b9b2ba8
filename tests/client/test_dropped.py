"""A worker that nobody refers to any more leaves at once: the coordinator is told, and nothing of it stays."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps.aio
from tests.inprocess import PATIENCE, InProcessCluster
from zmqps.client.futures import begins
from zmqps.client.thread import SessionThread
from zmqps.errors import ClosedError

pytestmark = pytest.mark.processes

NEVER = 1 << 40
PARAMS = {"w": np.zeros(4, np.float32)}
ONE = {"w": np.ones(4, np.float32)}
SGD = zmqps.optim.sgd(1.0)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    """A cluster that takes nobody for lost while a test runs: who is gone has said goodbye."""
    with InProcessCluster(heartbeat_timeout=600.0) as cluster, zmqps.connect(cluster.address, name="stays") as worker:
        worker.init(PARAMS, optimizer=SGD, mode="async")
        yield cluster


def workers(cluster: InProcessCluster) -> list[str]:
    return [member["name"] for member in cluster.status()["members"] if member["role"] == "worker"]


def plain(address: str) -> SessionThread:
    return zmqps.connect(address, name="dropped")._member.connection.thread


def in_a_circle(address: str) -> SessionThread:
    worker = zmqps.connect(address, name="dropped")
    circle: list[Any] = [worker]
    circle.append(circle)
    return worker._member.connection.thread


def with_memory(address: str) -> SessionThread:
    worker = zmqps.connect(address, name="dropped")
    worker.push(worker.gradient_buffers())
    worker.pull(copy=False)
    return worker._member.connection.thread


def with_what_waits(address: str) -> SessionThread:
    worker = zmqps.connect(address, name="dropped")
    worker.pull_async(at_least=NEVER, timeout=600.0)
    begins(zmqps.Worker.barrier)(worker, "nobody else comes", timeout=600.0)
    return worker._member.connection.thread


def rejoined(address: str) -> SessionThread:
    worker = zmqps.connect(address, name="dropped")
    worker.rejoin()
    return worker._member.connection.thread


def of_a_loop(address: str) -> SessionThread:
    async def main() -> SessionThread:
        worker = await zmqps.aio.connect(address, name="dropped")
        await worker.pull()
        return worker._worker._member.connection.thread

    return asyncio.run(main())


@pytest.mark.parametrize("drop", [plain, in_a_circle, with_memory, with_what_waits, rejoined, of_a_loop])
def test_a_dropped_worker_leaves_at_once(cluster: InProcessCluster, drop: Callable[[str], SessionThread]) -> None:
    thread = drop(cluster.address)
    gc.collect()
    thread._thread.join(PATIENCE)
    assert not thread._thread.is_alive()
    assert workers(cluster) == ["stays"]
    assert [t.name for t in threading.enumerate() if t.name.startswith("zmqps-aio")] == []


def test_a_worker_dropped_on_another_thread_or_in_a_loop_leaves_without_being_waited_for(
    cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    joins: list[str] = []
    threads: list[SessionThread] = []
    thread = threading.Thread(target=lambda: threads.append(with_what_waits(cluster.address)))
    thread.start()
    thread.join(PATIENCE)

    async def main() -> None:
        worker = await zmqps.aio.connect(cluster.address, name="dropped")
        threads.append(worker._worker._member.connection.thread)
        join = threading.Thread.join
        monkeypatch.setattr(threading.Thread, "join", lambda self, *args: joins.append(self.name) or join(self, *args))
        del worker
        gc.collect()
        monkeypatch.undo()

    asyncio.run(main())
    assert joins == []
    for dropped in threads:
        dropped._thread.join(PATIENCE)
        assert not dropped._thread.is_alive()
    assert workers(cluster) == ["stays"]


def test_the_futures_of_a_dropped_worker_are_resolved(cluster: InProcessCluster) -> None:
    worker = zmqps.connect(cluster.address, name="dropped")
    worker.pull()
    pushed, parked = worker.push_async(ONE), worker.pull_async(at_least=NEVER, timeout=600.0)
    del worker
    gc.collect()
    assert isinstance(parked.exception(PATIENCE), ClosedError)
    assert pushed.exception(PATIENCE) is None, "it was under way, and had the time to complete"


def test_a_worker_is_kept_until_its_init_is_done(cluster: InProcessCluster) -> None:
    worker = zmqps.connect(cluster.address, name="dropped")
    thread, done = (
        worker._member.connection.thread,
        begins(zmqps.Worker.init)(worker, PARAMS, optimizer=SGD, mode="async"),
    )
    del worker
    done.result(PATIENCE)
    gc.collect()
    thread._thread.join(PATIENCE)
    assert not thread._thread.is_alive()
    assert workers(cluster) == ["stays"]


def test_close_returns_when_the_coordinator_knows(cluster: InProcessCluster) -> None:
    for _ in range(20):
        worker = zmqps.connect(cluster.address, name="closed")
        stays = zmqps.connect(cluster.address, observer=True)
        worker.close()
        names = [m["name"] for m in stays.status()["members"] if m["role"] == "worker"]
        stays.close()
        assert names == ["stays"]


@pytest.mark.parametrize("held", ["a circle", "a module"])
def test_a_worker_that_nobody_closes_leaves_when_its_program_ends(cluster: InProcessCluster, held: str) -> None:
    hold = "circle = [worker]; circle.append(circle); del circle, worker" if held == "a circle" else "pass"
    program = (
        f"import gc, zmqps; gc.disable(); worker = zmqps.connect({cluster.address!r}, name='dropped')\n"
        f"worker.pull(); future = worker.pull_async(at_least=1 << 40, timeout=600.0); {hold}"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=4 * PATIENCE
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert workers(cluster) == ["stays"]
