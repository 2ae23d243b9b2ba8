"""End to end: a server is killed of whose shard nobody has a copy, and the job goes back to its last checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.modes import MODES
from tests.pace import allow, stretch
from tests.team import Team
from zmqps.errors import PeerLostError
from zmqps.nodes.inquiry import inquire, run_blocking

pytestmark = pytest.mark.processes

PATIENCE = allow(60.0)
#: Two servers have a slice each: a push is one message to each of them.
ZEROS = {"w": np.zeros(20_000, np.float32), "b": np.zeros(7, np.float32)}
ONES = {name: np.full_like(value, -1) for name, value in ZEROS.items()}
SGD = zmqps.optim.sgd(1.0)


def cluster(directory: Path, servers: int = 2, workers: int = 2, **limits: Any) -> zmqps.LocalCluster:
    return zmqps.LocalCluster(
        zmqps.Servers(servers, kernels="numpy"), workers, saving=zmqps.Saving(checkpoint=directory / "saved"),
        limits=zmqps.Limits(heartbeat_interval=0.3, heartbeat_timeout=stretch(2.0), slice_size=1 << 16, **limits),
        directory=directory / "logs",
    )  # fmt: skip


@contextmanager
def server(address: str) -> Iterator[None]:
    """Start one more server."""
    command = [sys.executable, "-m", "zmqps", "server", "--spare", f"--coordinator={address}", "--kernels=numpy"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)  # at SIGTERM it would hand over what it has first
        process.wait(PATIENCE)


def kill(cluster: zmqps.LocalCluster, name: str) -> None:
    os.kill(cluster.pids[name], signal.SIGKILL)


def job_of(address: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = run_blocking(inquire(address, timeout=PATIENCE))["jobs"]["default"]
    return found


class Script:
    """A training script on a thread; what it does goes on as if nothing had happened."""

    def __init__(self, address: str, mode: str, steps: int, *, saves: bool) -> None:
        self.some = threading.Event()  # steps are made, after a checkpoint
        self.made: Any = None
        self.back = threading.Event()
        self.rollbacks: list[zmqps.Rollback] = []
        self.num_pushes = 0
        self._address = address
        self._mode = mode
        self._steps = steps
        self._saves = saves

    def run(self) -> dict[str, np.ndarray]:
        with zmqps.connect(self._address, timeout=PATIENCE) as worker:
            worker.on_rollback(self._note)
            worker.init(ZEROS, optimizer=SGD, **MODES[self._mode])
            params, after = worker.pull(), 0
            while (params.version < self._steps) if self._mode == "sync" else (after < self._steps):
                params = worker.push_pull(ONES)
                self.num_pushes += 1
                after += self.back.is_set()
                if self.num_pushes == 10 and self._saves:
                    self.made = worker.checkpoint(state={"epoch": 3}, timeout=PATIENCE)
                if self.num_pushes == 20:
                    self.some.set()
            worker.barrier("all have pushed", timeout=PATIENCE)
            values = {name: np.array(value) for name, value in worker.pull().items()}
            worker.barrier("all have read", timeout=PATIENCE)
            return values

    def _note(self, rollback: zmqps.Rollback) -> None:
        self.rollbacks.append(rollback)
        self.back.set()


@pytest.mark.parametrize("mode", ["async", "bounded", "sync"])
def test_a_job_goes_back_by_itself_and_its_workers_just_go_on(mode: str, tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes, ThreadPoolExecutor(2) as pool:
        scripts = [Script(nodes.address, mode, 100 if mode == "sync" else 20, saves=not i) for i in range(2)]
        results: list[Future[dict[str, np.ndarray]]] = [pool.submit(script.run) for script in scripts]
        assert all(script.some.wait(PATIENCE) for script in scripts)
        made = scripts[0].made
        kill(nodes, "server-1")
        with server(nodes.address):
            values = [result.result(2 * PATIENCE) for result in results]
            told = job_of(nodes.address)["fallback"]
    (first,), (second,) = (script.rollbacks for script in scripts)
    assert first.path == second.path == made.path == told["last"]["path"]
    assert first.state == {"epoch": 3}
    assert told["times"] == 1
    for found in values:
        if mode == "sync":
            assert first.version == made.version
            assert first.shards == (0, 1)
            assert first.lost == told["last"]["lost"]
            assert all((value == 100).all() for value in found.values())
        else:
            (shard,), pushed = first.shards, sum(script.num_pushes for script in scripts)
            assert told["last"]["lost"] == first.lost + second.lost
            lost = first.lost + second.lost
            everything = np.concatenate([found["w"], found["b"]])
            assert set(np.unique(everything)) <= {pushed, pushed - lost}
            half = everything[:10_000] if shard == 0 else everything[-10_000:]
            assert (half[:9_000] == pushed - lost).all()


def gradients(params: Mapping[str, Any], rank: int, step: int) -> dict[str, Any]:
    """Return what depends on the values, so that a difference grows."""
    return {
        name: (np.sin(3 * np.asarray(value)) + rank + 0.1 * step).astype(np.float32) for name, value in params.items()
    }


def test_synchronous_training_that_went_back_equals_training_that_was_not_interrupted(tmp_path: Path) -> None:
    def train(team: Team, until: int) -> dict[str, np.ndarray]:
        def steps(worker: zmqps.Worker) -> dict[str, np.ndarray]:
            params = worker.pull(timeout=PATIENCE)
            while params.version < until:
                params = worker.push_pull(gradients(params, worker.rank, params.version), timeout=PATIENCE)
            return {name: np.array(value) for name, value in params.items()}

        return team.all(steps)[0]

    options: dict[str, Any] = {"optimizer": zmqps.optim.adam(0.05), "mode": "sync"}
    options["steps"] = zmqps.Steps(deterministic=True)
    with cluster(tmp_path / "one") as nodes, Team(nodes.address, 2, ZEROS, **options) as team:
        expected = train(team, 12)
    with cluster(tmp_path / "two") as nodes, Team(nodes.address, 2, ZEROS, **options) as team:
        train(team, 5)
        made = team.workers[0].checkpoint(timeout=PATIENCE)
        train(team, 8)
        back = [threading.Event() for _ in team.workers]
        for worker, event in zip(team.workers, back, strict=True):
            worker.on_rollback(lambda rollback, event=event: event.set())  # type: ignore[misc]
        kill(nodes, "server-0")
        with server(nodes.address):
            assert all(event.wait(PATIENCE) for event in back)
            assert team.workers[0].pull(timeout=PATIENCE).version == made.version == 5
            got = train(team, 12)
    for name, value in expected.items():
        assert np.array_equal(got[name], value)


def test_each_example_counts_once_a_pass_in_what_is_trained(tmp_path: Path) -> None:
    numbers, num_used = 20, 0
    with (
        cluster(tmp_path, workers=1) as nodes,
        zmqps.connect(nodes.address, timeout=PATIENCE) as worker,
        ExitStack() as stack,
    ):
        worker.init(ZEROS, optimizer=SGD, mode="sync")
        for found in worker.ranges(numbers, 1, timeout=PATIENCE):
            if num_used == 5:
                worker.checkpoint(timeout=PATIENCE)
            if num_used == 12:
                kill(nodes, "server-1")
                stack.enter_context(server(nodes.address))
            worker.pull(timeout=PATIENCE)
            worker.push({name: value * 2**found.number for name, value in ONES.items()}, timeout=PATIENCE)
            num_used += 1
        values = worker.pull(timeout=PATIENCE)
        assert set(np.unique(np.asarray(values["w"]))) == {2.0**numbers - 1}
        assert num_used == numbers + 8, "seven steps were lost, and the range in hand was to do again"


def test_a_checkpoint_that_cannot_be_read_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=1) as nodes, zmqps.connect(nodes.address, timeout=PATIENCE) as worker:
        worker.init(ZEROS, optimizer=SGD, mode="async")
        rollbacks: list[zmqps.Rollback] = []
        worker.on_rollback(rollbacks.append)
        worker.push(ONES)
        good = worker.checkpoint(timeout=PATIENCE)
        worker.push(ONES)
        bad = worker.checkpoint(timeout=PATIENCE)
        for file in Path(bad.path).glob("*.safetensors"):
            data = bytearray(file.read_bytes())
            data[-40:] = bytes(40)
            file.write_bytes(data)
        kill(nodes, "server-1")
        with server(nodes.address):
            worker.push(ONES, timeout=PATIENCE)
        assert [rollback.path for rollback in rollbacks] == [good.path]
        assert rollbacks[0].lost == 1
        log = (tmp_path / "logs" / "coordinator.log").read_text()
        assert f"{bad.path} cannot be used" in log


@pytest.mark.parametrize("saved", [False, True])
def test_where_no_server_comes_or_nothing_was_saved_the_job_fails_and_says_what_to_do(
    saved: bool, tmp_path: Path
) -> None:
    with (
        cluster(tmp_path, servers=1, workers=1, fallback_timeout=3.0) as nodes,
        zmqps.connect(nodes.address, timeout=PATIENCE) as worker,
    ):
        worker.init(ZEROS, optimizer=SGD, mode="sync")
        worker.push_pull(ONES)
        if saved:
            worker.checkpoint(timeout=PATIENCE)
        kill(nodes, "server-0")
        with pytest.raises(PeerLostError):
            worker.push_pull(ONES, timeout=PATIENCE)
        job = run_blocking(inquire(nodes.address, timeout=PATIENCE))["jobs"]["default"]
        assert ("no server has loaded shard 0" if saved else "--checkpoint DIR") in job["state"]
