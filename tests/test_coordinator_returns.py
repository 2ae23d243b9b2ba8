"""Real processes: the coordinator is killed in the middle of training, started again at its address, and all go on."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import zmqps
from tests.team import PATIENCE, Team
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.launch.cluster import Nodes
from zmqps.launch.config import ClusterConfig
from zmqps.launch.processes import Process, node_environment
from zmqps.nodes.journal import FILE

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

#: How long the coordinator may be away; and how long it is in these tests: longer than the silence that loses a node.
PATIENCE_S = 120.0
TIMEOUT_S, AWAY_S = 2.0, 4.0


class Cluster:
    """A coordinator with a journal and two servers, in processes of their own."""

    def __init__(self, directory: Path) -> None:
        self.journal = directory / "journal"
        self._directory = directory
        options = CoordinatorOptions(
            servers=2, heartbeat_interval=0.2, heartbeat_timeout=TIMEOUT_S, patience=PATIENCE_S
        )  # fmt: skip
        self.nodes = Nodes(ClusterConfig(options=options, kernels="numpy", journal=self.journal), self._spawn)

    def _spawn(self, name: str, command: list[str]) -> Process:
        log = self._directory / f"{name}.log"
        with log.open("ab") as file:
            return Process(name, command, stdout=file, log=log, env=node_environment(), is_node=True)

    def kill_coordinator(self) -> None:
        self.nodes.coordinator.send_signal(signal.SIGKILL)
        self.nodes.coordinator.popen.wait(PATIENCE)

    def restart_coordinator(self) -> None:
        before = self.nodes.address
        asyncio.run(asyncio.wait_for(self.nodes.restart(0), PATIENCE))
        assert self.nodes.address == before

    def log(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text()


@contextmanager
def started(directory: Path) -> Iterator[Cluster]:
    cluster = Cluster(directory)
    try:
        asyncio.run(cluster.nodes.start(60.0))
        yield cluster
    finally:
        asyncio.run(cluster.nodes.stop())
        cluster.nodes.close()


def test_asynchronous_training_does_not_pause_while_the_coordinator_is_away(tmp_path: Path) -> None:
    params = {name: np.zeros(1000, np.float32) for name in "wv"}
    with started(tmp_path) as cluster, Team(cluster.nodes.address, 2, params, optimizer=zmqps.optim.sgd(1.0)) as team:
        pushed, stop = [0, 0], threading.Event()

        def train(worker: zmqps.Worker) -> None:
            while not stop.is_set():
                worker.push({name: np.full(1000, -1.0, np.float32) for name in "wv"}, timeout=PATIENCE)
                pushed[worker.rank] += 1

        with ThreadPoolExecutor(1) as trainer:
            training = trainer.submit(team.all, train)
            cluster.kill_coordinator()
            time.sleep(AWAY_S / 2)
            before = list(pushed)
            time.sleep(AWAY_S / 2)
            meanwhile = [late - early for early, late in zip(before, pushed, strict=True)]
            cluster.restart_coordinator()
            stop.set()
            training.result(PATIENCE)
        assert all(meanwhile), f"{meanwhile} pushes while the coordinator was away"
        values = team.all(lambda worker: worker.pull(timeout=PATIENCE))
        for name in "wv":
            assert np.array_equal(values[0][name], np.full(1000, sum(pushed), np.float32))
        assert sorted(worker.rank for worker in team.workers) == [0, 1]
        team.all(lambda worker: worker.barrier("end", timeout=PATIENCE))
        team.all(lambda worker: worker.finish(timeout=PATIENCE))
        for server in ("server-0", "server-1"):
            assert "is back after" in cluster.log(server)
    assert not (cluster.journal / FILE).exists(), "the cluster has ended, and so has its journal"


def test_a_synchronous_step_goes_on_when_the_coordinator_is_back(tmp_path: Path) -> None:
    params = {"w": np.zeros(1000, np.float32)}
    options = {"optimizer": zmqps.optim.sgd(1.0), "staleness": 0}
    with started(tmp_path) as cluster, Team(cluster.nodes.address, 2, params, **options) as team:

        def step(rank: int) -> dict[str, np.ndarray]:
            return {"w": np.full(1000, -2.0 * 10**rank, np.float32)}

        assert team.step(step)[0].version == 1
        with ThreadPoolExecutor(1) as trainer:
            first = trainer.submit(team.workers[0].push, step(0), timeout=PATIENCE)
            first.result()  # one worker has arrived, or is about to
            cluster.kill_coordinator()
            waiting = trainer.submit(team.workers[0].pull, timeout=60.0)
            team.workers[1].push(step(1), timeout=PATIENCE)
            time.sleep(AWAY_S)
            assert not waiting.done()
            cluster.restart_coordinator()
            began = time.monotonic()
            assert waiting.result().version == 2
            assert team.workers[1].pull(timeout=PATIENCE).version == 2
            went_on_s = time.monotonic() - began
        for version in range(3, 6):
            pulled = team.step(step)[0]
            assert pulled.version == version
        assert np.array_equal(pulled["w"], np.full(1000, 11.0 * 5, np.float32))
        assert went_on_s < PATIENCE
        team.all(lambda worker: worker.finish(timeout=PATIENCE))


def test_finishing_waits_for_a_coordinator_that_is_away(tmp_path: Path) -> None:
    params = {"w": np.zeros(10, np.float32)}
    with started(tmp_path) as cluster, Team(cluster.nodes.address, 2, params, optimizer=zmqps.optim.sgd(1.0)) as team:
        cluster.kill_coordinator()
        with ThreadPoolExecutor(1) as finisher:
            finished = finisher.submit(team.all, lambda worker: worker.finish(timeout=60.0))
            time.sleep(AWAY_S)
            assert not finished.done()
            cluster.restart_coordinator()
            finished.result(PATIENCE)
        assert "lost worker" not in cluster.log("coordinator")
