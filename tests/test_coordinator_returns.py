"""Real processes: the coordinator is killed in the middle of training, started again at its address, and all go on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import zmqps
from tests.durable.nodes import Nodes
from tests.pace import allow, stretch
from tests.team import PATIENCE, Team
from zmqps.launch.processes import node_command, node_environment
from zmqps.nodes.journal import FILE

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

#: How long the coordinator may be away; and the silence that loses a node.
PATIENCE_S = 120.0
TIMEOUT_S = 2.0

ONES = {name: np.full(1000, -1.0, np.float32) for name in "wv"}
ZEROS = {name: np.zeros(1000, np.float32) for name in "wv"}
ASYNC = {"optimizer": zmqps.optim.sgd(1.0), "mode": "async"}
SYNC = {**ASYNC, "mode": "sync"}


def started(directory: Path, servers: int = 2, replicas: int = 0) -> Nodes:
    """Return a coordinator with a journal and servers, in processes of their own."""
    return Nodes(
        directory, servers, journal=directory / "journal", replicas=replicas, heartbeat_interval=0.2,
        heartbeat_timeout=stretch(TIMEOUT_S), patience=PATIENCE_S,
    )  # fmt: skip


def stay_away(cluster: Nodes) -> None:
    """Return when the servers have missed the coordinator for longer than the silence that loses a node."""
    for name, process in cluster.servers.items():
        if process.popen.poll() is None:
            cluster.wait_for(name, "the coordinator at .* has been away for [5-9] s")


class Pushing:
    """Workers that push integers until they are told to stop; how many pushes of each were acknowledged."""

    def __init__(self, team: Team) -> None:
        self.pushed = [0] * len(team.workers)
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._training = self._pool.submit(team.all, self._train)

    def _train(self, worker: zmqps.Worker) -> None:
        while not self._stop.is_set():
            worker.push(ONES, timeout=2 * PATIENCE)
            self.pushed[worker.rank] += 1

    def wait_for_more(self, pushes: int = 5) -> None:
        """Return when each worker has pushed so often since."""
        before, until = list(self.pushed), time.monotonic() + PATIENCE
        while any(now < then + pushes for then, now in zip(before, self.pushed, strict=True)):
            assert time.monotonic() < until, f"{self.pushed} pushes, {before} before"
            assert not self._training.done(), self._training.exception()
            time.sleep(0.01)

    def stop(self) -> int:
        """End it, and return how many pushes were acknowledged."""
        self._stop.set()
        self._training.result(2 * PATIENCE)
        self._pool.shutdown()
        return sum(self.pushed)


def check_sum(team: Team, pushes: int) -> None:
    for values in team.all(lambda worker: worker.pull(timeout=PATIENCE)):
        for name in ONES:
            assert np.array_equal(values[name], np.full(1000, pushes, np.float32)), f"{name}: not {pushes}"


def gradients(rank: int) -> dict[str, np.ndarray]:
    return {name: np.full(1000, -2.0 * 10**rank, np.float32) for name in ONES}


@pytest.mark.parametrize("options", [{"servers": 2}, {"servers": 3, "replicas": 1}], ids=["alone", "replicas"])
def test_asynchronous_training_does_not_pause_while_the_coordinator_is_away(
    tmp_path: Path, options: dict[str, int]
) -> None:
    with started(tmp_path, **options) as cluster, Team(cluster.address, 2, ZEROS, **ASYNC) as team:
        pushing = Pushing(team)
        pushing.wait_for_more()
        cluster.kill("coordinator")
        pushing.wait_for_more()
        stay_away(cluster)
        pushing.wait_for_more()
        cluster.restart("coordinator")
        for server in cluster.servers:
            cluster.wait_for(server, "is back after")
        pushing.wait_for_more()
        check_sum(team, pushing.stop())
        assert sorted(worker.rank for worker in team.workers) == [0, 1]
        team.all(lambda worker: worker.barrier("end", timeout=PATIENCE))
        team.all(lambda worker: worker.finish(timeout=PATIENCE))
    assert not (cluster.journal / FILE).exists(), "the cluster has ended, and so has its journal"


@pytest.mark.parametrize("options", [{"servers": 2}, {"servers": 3, "replicas": 1}], ids=["alone", "replicas"])
def test_a_synchronous_step_goes_on_when_the_coordinator_is_back(tmp_path: Path, options: dict[str, int]) -> None:
    with started(tmp_path, **options) as cluster, Team(cluster.address, 2, ZEROS, **SYNC) as team:
        assert team.step(gradients)[0].version == 1
        with ThreadPoolExecutor(1) as trainer:
            team.workers[0].push(gradients(0), timeout=PATIENCE)  # one worker has arrived, or is about to
            cluster.kill("coordinator")
            waiting = trainer.submit(team.workers[0].pull, timeout=allow(60.0))
            team.workers[1].push(gradients(1), timeout=PATIENCE)
            stay_away(cluster)
            assert not waiting.done()
            cluster.restart("coordinator")
            assert waiting.result(PATIENCE).version == 2
            assert team.workers[1].pull(timeout=PATIENCE).version == 2
        for version in range(3, 6):
            pulled = team.step(gradients)[0]
            assert pulled.version == version
        assert np.array_equal(pulled["w"], np.full(1000, 11.0 * 5, np.float32)), "each step is committed once"
        team.all(lambda worker: worker.finish(timeout=PATIENCE))


def test_nothing_is_lost_when_the_coordinator_and_a_server_are_killed_together(tmp_path: Path) -> None:
    with started(tmp_path, servers=3, replicas=1) as cluster, Team(cluster.address, 2, ZEROS, **ASYNC) as team:
        pushing = Pushing(team)
        pushing.wait_for_more()
        cluster.kill("coordinator")
        cluster.kill("server-1")
        cluster.restart("coordinator")
        cluster.wait_for("coordinator", "its backups take over")
        pushing.wait_for_more()
        check_sum(team, pushing.stop())
        team.all(lambda worker: worker.finish(timeout=PATIENCE))


def test_a_synchronous_step_is_committed_once_when_both_are_killed_together(tmp_path: Path) -> None:
    with started(tmp_path, servers=3, replicas=1) as cluster, Team(cluster.address, 2, ZEROS, **SYNC) as team:
        assert team.step(gradients)[0].version == 1
        with ThreadPoolExecutor(2) as trainers:
            for worker in team.workers:
                worker.push(gradients(worker.rank), timeout=PATIENCE)
            cluster.kill("coordinator")
            cluster.kill("server-0")
            waiting = [trainers.submit(worker.pull, timeout=allow(60.0)) for worker in team.workers]
            cluster.restart("coordinator")
            assert [each.result(2 * PATIENCE).version for each in waiting] == [2, 2]
        for version in range(3, 6):
            pulled = team.step(gradients)[0]
            assert pulled.version == version
        assert np.array_equal(pulled["w"], np.full(1000, 11.0 * 5, np.float32))
        team.all(lambda worker: worker.finish(timeout=PATIENCE))


def test_a_promotion_under_way_is_gone_on_with(tmp_path: Path) -> None:
    with started(tmp_path, servers=3, replicas=1) as cluster, Team(cluster.address, 2, ZEROS, **ASYNC) as team:
        pushing = Pushing(team)
        pushing.wait_for_more()
        cluster.kill("server-2")
        cluster.wait_for("coordinator", "takes over shard")
        cluster.kill("coordinator")
        cluster.restart("coordinator")
        pushing.wait_for_more()
        check_sum(team, pushing.stop())
        team.all(lambda worker: worker.finish(timeout=PATIENCE))


def test_make_coordinator_is_all_that_is_done_after_a_kill(tmp_path: Path) -> None:
    make = ["make", "--no-print-directory", "coordinator", "VENV=", "ADDRESS=tcp://127.0.0.1:0", "SERVERS=1"]
    make += [f"JOURNAL={tmp_path / 'journal'}"]  # from which it also knows the port that it had
    environment = {**node_environment(), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    log = tmp_path / "coordinator.log"

    def start(life: int) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            started = subprocess.Popen(make, stdout=file, stderr=file, env=environment, start_new_session=True)
        until = time.monotonic() + PATIENCE
        while log.read_text().count("coordinator at") < life:
            assert time.monotonic() < until, log.read_text()
            assert started.poll() is None, log.read_text()
            time.sleep(0.01)
        return started

    server = None
    running = start(1)
    try:
        (address,) = re.findall(r"coordinator at (tcp://[0-9.:]+)", log.read_text())
        command = node_command("server", "--coordinator", address, "--kernels", "numpy")
        with (tmp_path / "server.log").open("ab") as file:
            server = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        with Team(address, 2, ZEROS, **SYNC) as team:
            assert team.step(gradients)[0].version == 1
            os.killpg(running.pid, signal.SIGKILL)
            running.wait(PATIENCE)
            running = start(2)
            pulled = team.step(gradients)[0]
            assert pulled.version == 2
            assert np.array_equal(pulled["w"], np.full(1000, 22.0, np.float32))
            team.all(lambda worker: worker.finish(timeout=PATIENCE))
        assert "is back with 3 members and 1 job" in log.read_text()
    finally:
        running.terminate()  # make, which passes it on; the whole group would get it twice, and end at once
        running.wait(PATIENCE)
        if server is not None:
            assert server.wait(PATIENCE) == 0, "it ends with its cluster"


def test_finishing_waits_for_a_coordinator_that_is_away(tmp_path: Path) -> None:
    with started(tmp_path) as cluster, Team(cluster.address, 2, ZEROS, **ASYNC) as team:
        cluster.kill("coordinator")
        with ThreadPoolExecutor(1) as finisher:
            finished = finisher.submit(team.all, lambda worker: worker.finish(timeout=allow(60.0)))
            stay_away(cluster)
            assert not finished.done()
            cluster.restart("coordinator")
            finished.result(PATIENCE)
        assert "lost worker" not in cluster.log("coordinator")
