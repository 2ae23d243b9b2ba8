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
from tests.pace import stretch
from tests.team import PATIENCE, Team
from zmqps.checkpoint import open_checkpoint
from zmqps.client.futures import begins
from zmqps.errors import CheckpointFailedError, JobMismatchError
from zmqps.nodes.inquiry import end_job, inquire, run_blocking

pytestmark = pytest.mark.processes

#: Elements of a parameter: two slices and a half.
SIZE = 2500
SLICE_NBYTES = 4096
START = {"w": np.linspace(-1, 1, SIZE, dtype=np.float32), "b": np.linspace(0, 3, SIZE // 5, dtype=np.float64)}
ADAM = zmqps.optim.adam(0.05)
MODES: dict[str, dict[str, Any]] = {
    "async": {"mode": "async"},
    "bounded": {"mode": "bounded", "staleness": 1},
    "sync": {"mode": "sync", "steps": zmqps.Steps(deterministic=True)},
}


def gradients(params: Mapping[str, Any], rank: int, step: int) -> dict[str, Any]:
    """Return what depends on the values, so that a difference grows."""
    return {
        name: (np.sin(3 * np.asarray(params[name])) + rank + 0.1 * step).astype(a.dtype) for name, a in START.items()
    }


def cluster(
    directory: Path, servers: int = 2, workers: int = 2, replicas: int = 0, **saving: Any
) -> zmqps.LocalCluster:
    return zmqps.LocalCluster(
        zmqps.Servers(servers, kernels="numpy"), workers, replicas=replicas,
        saving=zmqps.Saving(checkpoint=directory, **{"at_end": False, **saving}),
        limits=zmqps.Limits(slice_size=SLICE_NBYTES, heartbeat_interval=0.3, heartbeat_timeout=stretch(10.0)),
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


@pytest.mark.parametrize("end", ["close", "finish", "jobs end"])
@pytest.mark.parametrize("mode", MODES)
def test_what_was_trained_is_saved_at_the_end_of_its_job_or_cluster(tmp_path: Path, mode: str, end: str) -> None:
    go_on = train if mode == "sync" else train_in_turn
    with cluster(tmp_path, at_end=True) as first:
        with Team(first.address, 2, START, optimizer=ADAM, **MODES[mode]) as team:
            expected = go_on(team, range(3))
            for worker in team.workers if end == "finish" else ():
                worker.finish()
            if end == "jobs end":
                end_job(first.address, "default", timeout=PATIENCE)
        log = first.directory / "coordinator.log"
        first.stop()
        text = log.read_text() if log.exists() else ""
    saved = open_checkpoint(str(tmp_path))
    assert saved.manifest.version == {"async": 6, "bounded": 3, "sync": 3}[mode]
    for name, value in zmqps.load(saved.path).items():
        np.testing.assert_array_equal(value, expected[name])
    assert not text or "last checkpoint of version" in text


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
        assert made.version == {"async": 6, "bounded": 3, "sync": 3}[mode]
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
        worker.init(START, optimizer=ADAM, mode="async", timeout=PATIENCE)
        use(worker, 7)
        worker.checkpoint(timeout=PATIENCE)
    with cluster(tmp_path, 3, 1, restore=tmp_path) as second, zmqps.connect(second.address, timeout=PATIENCE) as worker:
        worker.pull(timeout=PATIENCE)  # no init: it takes the job as it is
        use(worker, 100)
    assert sorted(used) == [(data_pass, index) for data_pass in range(2) for index in range(50)]


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_restored_job_trains_with_the_numbers_that_its_chief_says(tmp_path: Path, mode: str) -> None:
    params = {"w": np.zeros(4), "v": np.zeros(4)}
    ones = {name: np.ones(4) for name in params}
    optimizer = zmqps.optim.sgd(1.0, groups=[zmqps.optim.group("v", weight_decay=0.0)])
    with cluster(tmp_path, 1, 1) as first, zmqps.connect(first.address, timeout=PATIENCE) as worker:
        worker.init(params, optimizer=optimizer, timeout=PATIENCE, **MODES[mode])
        assert worker.set_hyperparameters({"learning_rate": 0.01}, timeout=PATIENCE)
        worker.push(ones, timeout=PATIENCE)
        worker.checkpoint(timeout=PATIENCE)
    with cluster(tmp_path, 1, 1, restore=tmp_path) as second, zmqps.connect(second.address, timeout=PATIENCE) as worker:
        worker.init(params, optimizer=optimizer, timeout=PATIENCE, **MODES[mode])
        values = worker.push_pull(ones, timeout=PATIENCE)
        np.testing.assert_allclose(values["w"], -0.02, err_msg="a checkpoint keeps what was set")
        constant = {"learning_rate": 1.0, "weight_decay": 0.0}
        assert worker.is_chief
        assert worker.set_hyperparameters(constant, groups=[constant], timeout=PATIENCE)
        values = worker.push_pull(ones, timeout=PATIENCE)
        np.testing.assert_allclose([values["w"], values["v"]], -1.02, err_msg="the script's constant is in force")
    with cluster(tmp_path, 1, 1, restore=tmp_path) as third, zmqps.connect(third.address, timeout=PATIENCE) as worker:
        with pytest.raises(JobMismatchError, match="optimizer"):  # what servers have is that of the checkpoint
            worker.init(params, optimizer=zmqps.optim.sgd(0.5), timeout=PATIENCE, **MODES[mode])


def test_all_that_is_killed_in_the_middle_of_a_save_goes_on_from_the_one_before(tmp_path: Path) -> None:
    params = {"w": np.zeros(4_000_000, np.float32)}
    ones = {"w": np.full(4_000_000, -1.0, np.float32)}
    with cluster(tmp_path, workers=1) as first, zmqps.connect(first.address, timeout=PATIENCE) as worker:
        worker.init(params, optimizer=zmqps.optim.sgd(1.0), mode="async", timeout=PATIENCE)
        worker.push(ones, timeout=PATIENCE)
        good = worker.checkpoint(timeout=PATIENCE)
        worker.push(ones, timeout=PATIENCE)
        saving = begins(zmqps.Worker.checkpoint)(worker, timeout=PATIENCE)
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
        worker.init(START, optimizer=ADAM, mode="async", timeout=PATIENCE)
        with pytest.raises(CheckpointFailedError, match="place"):
            worker.checkpoint(timeout=PATIENCE)
        worker.push(gradients(START, 0, 0), timeout=PATIENCE)
        job = run_blocking(inquire(first.address, timeout=PATIENCE))["jobs"]["default"]
        assert "place" in job["checkpoint"]["failed"]


def test_it_is_saved_every_so_many_steps_and_so_many_are_kept(tmp_path: Path) -> None:
    with (
        cluster(tmp_path, every="3steps", keep=2) as first,
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


# --- only what has changed ----------------------------------------------------------------------------

#: A backbone, and what is trained of it.
LAYERS = {**{f"layer{i}": np.linspace(-1, i, SIZE, dtype=np.float32) for i in range(5)}, "head": START["b"]}


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_buffers_are_saved_with_what_is_trained(tmp_path: Path, mode: str) -> None:
    buffers: dict[str, Any] = {
        "mean": np.linspace(0, 1, SIZE, dtype=np.float32),
        "table": np.arange(SIZE) << 40,
        "count": np.array(3),
        "flags": np.array([True, False]),
        "mask": np.array([0.0, -np.inf, np.nan]),
    }
    with (
        cluster(tmp_path, workers=1) as first,
        zmqps.connect(first.address, timeout=PATIENCE) as worker,
    ):
        worker.init(START, optimizer=ADAM, buffers=buffers, timeout=PATIENCE, **MODES[mode])
        for step in range(3):
            worker.push(gradients(worker.pull(timeout=PATIENCE), 0, step), timeout=PATIENCE)
            if step == 1:
                buffers = buffers | {"count": np.array(2**62), "flags": ~buffers["flags"]}
                worker.set({name: buffers[name] for name in ("count", "flags")}, step=True, timeout=PATIENCE)
            expected = worker.pull(timeout=PATIENCE)
            worker.checkpoint(timeout=PATIENCE)
    loaded = zmqps.load(tmp_path)
    for name, value in (expected | buffers).items():
        np.testing.assert_array_equal(loaded[name], value)
        assert loaded[name].dtype == (buffers | START)[name].dtype
    with (
        cluster(tmp_path, 3, 1, restore=tmp_path) as second,
        zmqps.connect(second.address, timeout=PATIENCE) as worker,
    ):
        nothing = {name: np.zeros_like(value) for name, value in (START | buffers).items()}
        params, zeros = ({name: nothing[name] for name in names} for names in (START, buffers))
        worker.init(params, optimizer=ADAM, buffers=zeros, timeout=PATIENCE, **MODES[mode])
        values = worker.pull(timeout=PATIENCE)
        for name, value in (expected | buffers).items():
            np.testing.assert_array_equal(values[name], value)
