"""What becomes of those who wait when a node meets a defect: they are told, by name, and at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, NoReturn

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.pace import allow
from tests.team import PATIENCE
from zmqps.client.futures import begins
from zmqps.core.coordinator import machine as coordinator_machine
from zmqps.core.server.dense.part import DensePart
from zmqps.core.worker.transfers import Transfers
from zmqps.errors import InternalError

ONE = {"w": np.ones(4, np.float32)}


class Defect(Exception):
    """What no node raises."""


def break_down(*args: Any, **kwargs: Any) -> NoReturn:
    raise Defect("of the test")


@pytest.fixture
def worker() -> Iterator[zmqps.Worker]:
    with (
        InProcessCluster(servers=1, workers=1) as cluster,
        zmqps.connect(cluster.address, timeout=PATIENCE) as worker,
    ):
        worker.init({"w": np.zeros(4, np.float32)}, optimizer=zmqps.optim.sgd(1.0), mode="async", timeout=PATIENCE)
        yield worker


def failure(future: Future[Any]) -> InternalError:
    """Return the error of an operation, long before its timeout."""
    error = future.exception(timeout=PATIENCE)
    assert isinstance(error, InternalError)
    return error


def test_a_defect_in_a_worker_fails_all_that_waits_and_all_that_comes(
    worker: zmqps.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = worker.pull_async(at_least=99, timeout=allow(60.0))
    with monkeypatch.context() as broken:
        broken.setattr(Transfers, "handle", break_down)
        error = failure(worker.push_async(ONE, timeout=allow(60.0)))
        assert error.node.startswith("worker 0 (")
        assert error.what == "Defect: of the test"
        assert isinstance(error.__cause__, Defect)
        assert failure(waits) is error
        for operation in (worker.pull, worker.finish):
            with pytest.raises(InternalError, match="please report it"):
                operation(timeout=allow(60.0))


def test_after_a_defect_a_worker_can_join_again(worker: zmqps.Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(Transfers, "begin", break_down)
        failure(worker.push_async(ONE, timeout=allow(60.0)))
    worker.rejoin(timeout=PATIENCE)
    worker.push(ONE, timeout=PATIENCE)
    assert (worker.pull(timeout=PATIENCE)["w"] == -1).all()


def test_a_server_tells_whose_request_met_a_defect_and_goes_on(
    worker: zmqps.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(DensePart, "push", break_down)
        error = failure(worker.push_async(ONE, timeout=allow(60.0)))
        assert error.node.startswith("server 0 (")
    worker.push(ONE, timeout=PATIENCE)
    assert (worker.pull(timeout=PATIENCE)["w"] == -1).all()


def test_the_coordinator_tells_whose_request_met_a_defect_and_goes_on(
    worker: zmqps.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(coordinator_machine, "members_status", break_down)
        assert failure(begins(zmqps.Worker.status)(worker, timeout=allow(60.0))).node.startswith("the coordinator (")
    assert worker.status(timeout=PATIENCE)["jobs"]["default"]["steps"] is not None
