"""Real clusters that are told to save into one directory, at once and one after the other."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

import zmqps
from tests.pace import stretch
from tests.team import PATIENCE
from zmqps.checkpoint import good_ones, open_checkpoint
from zmqps.checkpoint.owners import LOCK
from zmqps.checkpoint.storage import LocalStorage
from zmqps.errors import CheckpointNotFoundError, CheckpointStorageError

pytestmark = pytest.mark.processes

KEEP = 2
START = {"w": np.zeros(300, np.float32)}


def cluster(directory: Path, restore: Path | None = None) -> zmqps.LocalCluster:
    return zmqps.LocalCluster(
        zmqps.Servers(1, kernels="numpy"), workers=1,
        saving=zmqps.Saving(checkpoint=directory, restore=restore, keep=KEEP, at_end=False),
        limits=zmqps.Limits(heartbeat_interval=0.3, heartbeat_timeout=stretch(10.0)),
    )  # fmt: skip


def trained(worker: zmqps.Worker, number: int) -> None:
    worker.push({"w": np.full(300, number, np.float32)}, timeout=PATIENCE)


def test_a_second_cluster_is_refused_while_the_first_is_alive(tmp_path: Path) -> None:
    with cluster(tmp_path) as first, zmqps.connect(first.address, timeout=PATIENCE) as worker:
        worker.init(START, optimizer=zmqps.optim.sgd(1.0), mode="async", timeout=PATIENCE)
        made = worker.checkpoint(timeout=PATIENCE)
        with pytest.raises(CheckpointStorageError, match=r"saves its jobs there, and is alive; name another") as caught:
            cluster(tmp_path).start()
        with cluster(tmp_path / "other", restore=tmp_path):  # to read takes no lock
            pass
        note = json.loads((tmp_path / LOCK).read_text())
        assert caught.value.path == str(tmp_path)
        assert f"host {note['host']}, pid {note['pid']}, " in caught.value.what
        trained(worker, 1)
        worker.checkpoint(timeout=PATIENCE)
    assert not (tmp_path / LOCK).exists()
    list(open_checkpoint(made.path).verify())
    with cluster(tmp_path):
        pass


def test_a_cluster_that_was_killed_holds_no_lock(tmp_path: Path) -> None:
    first = cluster(tmp_path).start()
    coordinator = psutil.Process(json.loads((tmp_path / LOCK).read_text())["pid"])
    os.kill(coordinator.pid, signal.SIGKILL)
    coordinator.wait(PATIENCE)
    with cluster(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] != coordinator.pid
    first.stop()


@pytest.mark.parametrize("restored", [False, True])
def test_runs_one_after_the_other_leave_no_more_than_one_does(tmp_path: Path, restored: bool) -> None:
    owners = []
    for number in range(3):
        with (
            cluster(tmp_path, restore=tmp_path if restored and number else None) as one,
            zmqps.connect(one.address, timeout=PATIENCE) as worker,
        ):
            worker.init(START, optimizer=zmqps.optim.sgd(1.0), mode="async", timeout=PATIENCE)
            for step in range(KEEP):
                trained(worker, step)
                made = worker.checkpoint(timeout=PATIENCE)
        good = list(good_ones(LocalStorage(), str(tmp_path / "default")))
        assert len(good) == KEEP
        assert good[0].path == made.path
        assert good[0].manifest.owner is not None
        owners.append(good[0].manifest.owner)
    assert len({owner.cluster for owner in owners}) == 3
    assert {owner.run for owner in owners} == {owner.cluster for owner in owners[: 1 if restored else 3]}


def test_without_a_lock_each_cluster_keeps_its_own_and_names_the_other(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()  # so there is none
    made: dict[int, list[str]] = {0: [], 1: []}
    with cluster(tmp_path) as first, cluster(tmp_path) as second:
        with (
            zmqps.connect(first.address, timeout=PATIENCE) as one,
            zmqps.connect(second.address, timeout=PATIENCE) as other,
        ):
            workers = [one, other]
            for number, worker in enumerate(workers):
                worker.init(
                    {"w": START["w"] + 100 * number}, optimizer=zmqps.optim.sgd(1.0), mode="async", timeout=PATIENCE
                )
            for _ in range(8):  # as many as scripts may ask for at once
                for number, worker in enumerate(workers):
                    trained(worker, 0)
                    made[number].append(worker.checkpoint(timeout=PATIENCE).path)
        logs = [(local.directory / "coordinator.log").read_text() for local in (first, second)]
    for number, paths in made.items():
        for path in paths[-KEEP:]:
            np.testing.assert_array_equal(zmqps.load(path)["w"], START["w"] + 100 * number)
    assert len(list(good_ones(LocalStorage(), str(tmp_path / "default")))) == 2 * KEEP
    with pytest.raises(CheckpointNotFoundError, match="have written to it in turns"):
        cluster(tmp_path / "third", restore=tmp_path).start()
    assert [log.count("publishes into the same directory") for log in logs] == [1, 1]
