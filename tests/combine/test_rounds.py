"""What a worker of a host group may ask for means what it means without one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.team import PATIENCE, Team
from zmqps.client.futures import begins
from zmqps.combine.messages import Fetched, FetchValues
from zmqps.errors import DeadlineError, NonFiniteGradientError

SIZE = 500
START = {"w": np.zeros(SIZE, np.float32), "b": np.zeros(3, np.float32)}


@pytest.fixture(autouse=True)
def combined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZMQPS_COMBINE", "host")


@pytest.fixture
def cluster() -> Iterator[InProcessCluster]:
    with InProcessCluster(servers=2, workers=3) as cluster:
        yield cluster


def team(cluster: InProcessCluster, **options: Any) -> Team:
    """Return three workers that have found together."""
    found = Team(cluster.address, 3, START, optimizer=zmqps.optim.sgd(1.0), **{"mode": "sync", **options})
    found.all(lambda worker: worker.pull(timeout=PATIENCE))
    return found


def full(worker: zmqps.Worker, value: float) -> dict[str, np.ndarray]:
    return {"w": np.full(SIZE, value, np.float32), "b": np.full(3, value, np.float32)}


def test_the_mean_is_over_examples_and_over_those_who_brought_a_parameter(cluster: InProcessCluster) -> None:
    def step(worker: zmqps.Worker) -> Any:
        grads: dict[str, Any] = full(worker, worker.rank + 1)
        if worker.rank == 2:
            grads["b"] = None
        return worker.push_pull(grads, examples=worker.rank + 1, timeout=PATIENCE)

    workers = team(cluster)
    for params in workers.all(step):
        np.testing.assert_allclose(params["w"], -(1 + 4 + 9) / 6, rtol=1e-6)
        np.testing.assert_allclose(params["b"], -(1 + 4) / 3, rtol=1e-6)
        assert params.version == 1
    workers.close()


def test_partial_pushes_add_up_and_who_skips_holds_up_nobody(cluster: InProcessCluster) -> None:
    def step(worker: zmqps.Worker) -> Any:
        if worker.rank == 1:
            worker.push(full(worker, 100), step=False, timeout=PATIENCE)
            worker.skip(timeout=PATIENCE)
        else:
            worker.push({"w": np.full(SIZE, 2, np.float32)}, timeout=PATIENCE)
            worker.push({"w": np.full(SIZE, 4, np.float32)}, step=True, timeout=PATIENCE)
        return worker.pull(timeout=PATIENCE)

    workers = team(cluster)
    for params in workers.all(step):
        np.testing.assert_array_equal(params["w"], np.full(SIZE, -3, np.float32))
        np.testing.assert_array_equal(params["b"], START["b"])
    workers.close()


def test_what_is_set_in_a_step_is_there_after_it(cluster: InProcessCluster) -> None:
    def step(worker: zmqps.Worker) -> Any:
        if worker.rank == 2:
            worker.set({"b": np.array([7, 8, 9], np.float32)}, timeout=PATIENCE)
        return worker.push_pull({"w": np.ones(SIZE, np.float32)}, step=True, timeout=PATIENCE)

    workers = team(cluster)
    workers.all(step)
    for params in workers.all(lambda worker: worker.pull("b", timeout=PATIENCE)):
        np.testing.assert_array_equal(params["b"], [7, 8, 9])
    workers.close()


def test_what_a_worker_sets_it_reads_back_in_the_asynchronous_mode(cluster: InProcessCluster) -> None:
    workers = team(cluster, mode="async")
    one = workers.workers[2]
    for value in (3.0, 4.0):
        one.set({"b": np.full(3, value, np.float32)}, timeout=PATIENCE)
        np.testing.assert_array_equal(one.pull(timeout=PATIENCE)["b"], np.full(3, value))
    workers.close()


def test_a_gradient_that_is_not_finite_is_its_own_workers_error(cluster: InProcessCluster) -> None:
    def step(worker: zmqps.Worker) -> Any:
        if worker.rank == 1:
            with pytest.raises(NonFiniteGradientError, match=r"gradient of w, b pushed by worker 1 "):
                worker.push(full(worker, np.nan), timeout=PATIENCE)
        return worker.push_pull(full(worker, 1), timeout=PATIENCE)

    workers = team(cluster)
    for params in workers.all(step):
        np.testing.assert_array_equal(params["w"], np.full(SIZE, -1, np.float32))
    workers.close()


def test_who_waits_is_told_for_whom(cluster: InProcessCluster) -> None:
    workers = team(cluster)
    workers.all(lambda worker: worker.push_pull(full(worker, 1), timeout=PATIENCE))
    with pytest.raises(
        DeadlineError, match=r"waiting for worker 1 .*, worker 2 .*: step 1 has the gradients of 1 worker"
    ):
        workers.workers[0].push(full(workers.workers[0], 1), timeout=2.5)
    for params in workers.all(lambda worker: worker.push_pull(full(worker, 1), timeout=PATIENCE)):
        np.testing.assert_array_equal(params["w"], np.full(SIZE, -2, np.float32))
    workers.close()


def test_no_round_waits_for_a_worker_in_a_barrier(cluster: InProcessCluster) -> None:
    workers = team(cluster)
    workers.all(lambda worker: worker.push_pull(full(worker, 1), timeout=PATIENCE))
    entered = threading.Event()
    with ThreadPoolExecutor(3) as threads:

        def wait(worker: zmqps.Worker) -> None:
            future = begins(zmqps.Worker.barrier)(worker, "end", timeout=PATIENCE)
            entered.set()
            future.result()

        last = threads.submit(wait, workers.workers[2])
        entered.wait(PATIENCE)
        steps = [threads.submit(worker.push_pull, full(worker, 1), timeout=PATIENCE) for worker in workers.workers[:2]]
        for done in steps:
            np.testing.assert_array_equal(done.result()["w"], np.full(SIZE, -2, np.float32))
        others = [threads.submit(worker.barrier, "end", timeout=PATIENCE) for worker in workers.workers[:2]]
        for done in (last, *others):
            done.result()
    for params in workers.all(lambda worker: worker.push_pull(full(worker, 1), timeout=PATIENCE)):
        np.testing.assert_array_equal(params["w"], np.full(SIZE, -3, np.float32))
    workers.close()


def test_the_others_go_on_when_the_leader_has_finished(cluster: InProcessCluster) -> None:
    workers = team(cluster)
    workers.all(lambda worker: worker.push_pull(full(worker, 1), timeout=PATIENCE))
    leading = [worker for worker in workers.workers if worker._exchanges._group.leader is not None]  # type: ignore[attr-defined]
    assert len(leading) == 1
    leading[0].finish(timeout=PATIENCE)
    rest = [worker for worker in workers.workers if worker is not leading[0]]
    with ThreadPoolExecutor(2) as threads:
        for _ in range(2):
            done = [threads.submit(worker.push_pull, full(worker, 1), timeout=PATIENCE) for worker in rest]
            values = [future.result()["w"] for future in done]
    for value in values:
        np.testing.assert_array_equal(value, np.full(SIZE, -3, np.float32))
    workers.close()


def test_a_leader_that_has_left_a_step_does_not_wait_for_the_values_of_the_next(cluster: InProcessCluster) -> None:
    workers = team(cluster)
    [leading] = [worker for worker in workers.workers if worker._exchanges._group.leader is not None]  # type: ignore[attr-defined]
    exchanges: Any = leading._exchanges
    exchanges._direct.begin_push(full(leading, 1), False, 1, None, None, PATIENCE).result()  # the others are awaited
    fetch = exchanges._group.leader._fetch  # type: ignore[attr-defined]
    assert fetch(FetchValues(1, 0, 0)) == Fetched(1, -1)
    workers.close()
