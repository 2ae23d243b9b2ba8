"""Real clusters that are saved while they train, killed, and begun again from the disk."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.team import PATIENCE, Team
from zmqps.errors import CheckpointFailedError
from zmqps.nodes.inquiry import inquire, run_blocking

pytestmark = pytest.mark.processes

#: Elements of a parameter: two slices and a half.
SIZE = 2500
SLICE_NBYTES = 4096
START = {"w": np.linspace(-1, 1, SIZE, dtype=np.float32), "b": np.linspace(0, 3, SIZE // 5, dtype=np.float64)}
ADAM = zmqps.optim.adam(0.05)
MODES: dict[str, dict[str, Any]] = {
    "async": {}, "ssp": {"staleness": 1}, "sync": {"staleness": 0, "deterministic": True},
}  # fmt: skip


def gradients(params: Mapping[str, Any], rank: int, step: int) -> dict[str, Any]:
    """Return what depends on the values, so that a difference grows."""
    return {
        name: (np.sin(3 * np.asarray(params[name])) + rank + 0.1 * step).astype(a.dtype) for name, a in START.items()
    }


def cluster(directory: Path, servers: int = 2, workers: int = 2, **options: Any) -> zmqps.LocalCluster:
    return zmqps.LocalCluster(
        servers=servers, workers=workers, kernels="numpy", slice_nbytes=SLICE_NBYTES, checkpoint=directory,
        heartbeat_interval=0.3, heartbeat_timeout=10.0, **options,
    )  # fmt: skip


def train(team: Team, steps: range) -> dict[str, Any]:
    """Let workers take steps together; return the values."""
    for step in steps:
        values = team.workers[0].pull(timeout=PATIENCE)
        team.step(lambda rank, values=values, step=step: gradients(values, rank, step))  # type: ignore[misc]
    return {name: np.array(value) for name, value in team.workers[0].pull(timeout=PATIENCE).items()}


def train_in_turn(team: Team, steps: range) -> dict[str, Any]:
    """The same where each push is applied on arrival: one after the other, in the same order."""
    for step in steps:
        for worker in team.workers:
            values = worker.pull(timeout=PATIENCE)
            worker.push(gradients(values, worker.rank, step), timeout=PATIENCE)
    return {name: np.array(value) for name, value in team.workers[0].pull(timeout=PATIENCE).items()}


@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_training_that_was_restored_equals_training_that_was_not_interrupted(
    tmp_path: Path, mode: str, servers: int
) -> None:
    go_on = train if mode == "sync" else train_in_turn
    with cluster(tmp_path) as first, Team(first.address, 2, START, optimizer=ADAM, **MODES[mode]) as team:
        go_on(team, range(3))
        made = team.workers[0].checkpoint(state={"epoch": 3}, consistent=True, timeout=PATIENCE)
        expected = go_on(team, range(3, 6))
        assert made.nbytes > 3 * sum(array.nbytes for array in START.values())
        assert made.version == {"async": 6, "ssp": 3, "sync": 3}[mode]
    assert os.path.isdir(made.path)
    zeros = {name: np.zeros_like(array) for name, array in START.items()}
    with (
        cluster(tmp_path, servers, restore=tmp_path) as second,
        Team(second.address, 2, zeros, optimizer=ADAM, **MODES[mode]) as team,
    ):
        for worker in team.workers:
            assert worker.restored is not None
            assert (worker.restored.path, worker.restored.state) == (made.path, {"epoch": 3})
            assert worker.restored.version == made.version
        got = go_on(team, range(3, 6))
    for name, array in expected.items():
        if servers == 2:
            assert np.array_equal(got[name], array)
        else:
            np.testing.assert_allclose(got[name], array, rtol=1e-6, atol=1e-6)


def test_a_worker_attaches_without_values_and_each_example_is_used_once_a_pass(tmp_path: Path) -> None:
    used: list[tuple[int, int]] = []

    def use(worker: zmqps.Worker, most: int) -> None:
        for number, found in enumerate(worker.ranges(50, 5, passes=2, shuffle_seed=3, timeout=PATIENCE)):
            if number == most:
                return
            used.extend((found.data_pass, index) for index in found.indices.tolist())

    with cluster(tmp_path, workers=1) as first, zmqps.connect(first.address, timeout=PATIENCE) as worker:
        worker.init(START, optimizer=ADAM, timeout=PATIENCE)
        use(worker, 7)
        worker.checkpoint(timeout=PATIENCE)
    with cluster(tmp_path, 3, 1, restore=tmp_path) as second, zmqps.connect(second.address, timeout=PATIENCE) as worker:
        worker.pull(timeout=PATIENCE)  # no init: it takes the job as it is
        use(worker, 100)
    assert sorted(used) == [(data_pass, index) for data_pass in range(2) for index in range(50)]


def test_all_that_is_killed_in_the_middle_of_a_save_goes_on_from_the_one_before(tmp_path: Path) -> None:
    params = {"w": np.zeros(4_000_000, np.float32)}
    ones = {"w": np.full(4_000_000, -1.0, np.float32)}
    with cluster(tmp_path, workers=1) as first, zmqps.connect(first.address, timeout=PATIENCE) as worker:
        worker.init(params, optimizer=zmqps.optim.sgd(1.0), timeout=PATIENCE)
        worker.push(ones, timeout=PATIENCE)
        good = worker.checkpoint(timeout=PATIENCE)
        worker.push(ones, timeout=PATIENCE)
        saving = worker.checkpoint_async(timeout=PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while not list(tmp_path.glob("*/tmp-*/*.safetensors")) and not saving.done():
            assert time.monotonic() < deadline
        for process in first._nodes.processes:
            os.kill(process.popen.pid, signal.SIGKILL)
    with cluster(tmp_path, 3, 1, restore=tmp_path) as second, zmqps.connect(second.address, timeout=PATIENCE) as worker:
        value = np.array(worker.pull(timeout=PATIENCE)["w"])
        assert worker.restored is not None
        published = worker.restored.path != good.path  # the kill came too late for it
        assert (value == (2.0 if published else 1.0)).all()
        worker.checkpoint(timeout=PATIENCE)
    assert len(list(tmp_path.glob("*/ckpt-*"))) == 2 + published


def test_where_nothing_can_be_written_training_goes_on_and_the_error_and_the_status_say_so(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.write_text("this is no directory")
    with cluster(place, workers=1) as first, zmqps.connect(first.address, timeout=PATIENCE) as worker:
        worker.init(START, optimizer=ADAM, timeout=PATIENCE)
        with pytest.raises(CheckpointFailedError, match="place"):
            worker.checkpoint(timeout=PATIENCE)
        worker.push(gradients(START, 0, 0), timeout=PATIENCE)
        job = run_blocking(inquire(first.address, timeout=PATIENCE))["jobs"]["default"]
        assert "place" in job["checkpoint"]["failed"]


def test_it_is_saved_every_so_many_steps_and_so_many_are_kept(tmp_path: Path) -> None:
    with (
        cluster(tmp_path, checkpoint_every="3steps", keep=2) as first,
        Team(first.address, 2, START, optimizer=ADAM, **MODES["sync"]) as team,
    ):
        done = 0

        for least in (3, 6, 9):
            train(team, range(done, done + 4))
            done += 4
            run_blocking(inquire(first.address, timeout=PATIENCE, until=partial(is_saved, least)))
    names = sorted(path.name for path in tmp_path.glob("*/ckpt-*"))
    assert len(names) == 2
    assert not list(tmp_path.glob("*/tmp-*"))


def is_saved(version: int, status: Mapping[str, Any]) -> bool:
    """Whether there is a checkpoint of this version or a later one."""
    return int(status["jobs"]["default"]["checkpoint"].get("last", {}).get("version", 0)) >= version
