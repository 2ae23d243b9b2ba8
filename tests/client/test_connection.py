"""A connection's own: how long a call waits that has no timeout, who is the chief, and that nobody is there twice."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import zmqps
from tests.inprocess import PATIENCE, InProcessCluster
from tests.team import Team
from zmqps.errors import ClosedError


@pytest.mark.parametrize(
    ("heartbeat_timeout", "timeout", "default"), [(10.0, 50.0, 60.0), (90.0, 50.0, 180.0), (90.0, 500.0, 500.0)]
)
def test_a_call_waits_longer_than_it_takes_to_lose_somebody(
    heartbeat_timeout: float, timeout: float, default: float
) -> None:
    with (
        InProcessCluster(heartbeat_timeout=heartbeat_timeout) as cluster,
        zmqps.connect(cluster.address, timeout=timeout) as worker,
    ):
        assert (worker._member.connection.seconds(None), worker._member.connection.seconds(3.0)) == (default, 3.0)


def test_one_worker_is_the_chief_and_when_it_leaves_another_one_is() -> None:
    with (
        InProcessCluster(servers=1, workers=2) as cluster,
        Team(cluster.address, 2, {"w": np.zeros(3, np.float32)}, optimizer=zmqps.optim.sgd(), mode="async") as pair,
        zmqps.connect(cluster.address, observer=True) as observer,
    ):
        first, second = pair.workers
        first.status()  # behind the answer whatever was said before has come
        second.status()
        assert [worker.is_chief for worker in (first, second, observer)] == [True, False, False]
        first.close()
        assert second.status()["jobs"]["default"]["chief"].startswith("worker 1 ")
        assert second.is_chief


def test_a_worker_of_the_same_name_takes_the_place_of_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    one = {"w": np.ones(3, np.float32)}
    with InProcessCluster(servers=1, workers=2, heartbeat_timeout=600.0) as cluster:
        with zmqps.connect(cluster.address, name="other") as other:
            kept = []  # as a notebook keeps what a cell has returned
            for _ in range(3):
                worker = zmqps.connect(cluster.address, name="mine")
                worker.init(one, optimizer=zmqps.optim.sgd(1.0), mode="sync")
                kept.append(worker)
            other.init(one, optimizer=zmqps.optim.sgd(1.0), mode="sync")
            for member in (worker, other):
                member.push(one, timeout=PATIENCE)
            assert worker.pull(timeout=PATIENCE).version == 1, "nobody waits for those before"
            names = [member["name"] for member in other.status()["members"] if member["role"] == "worker"]
            assert sorted(names) == ["mine", "other"]
            with pytest.raises(ClosedError):
                kept[0].pull()
            worker.close()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert sum("'mine' of this process connects again: the one before is closed" in text for text in said) == 2


def test_workers_of_other_names_jobs_and_roles_stay() -> None:
    with InProcessCluster(servers=1) as cluster:
        stay = [
            zmqps.connect(cluster.address, name="a"),
            zmqps.connect(cluster.address, name="a", job="another"),
            zmqps.connect(cluster.address, name="a", observer=True),
            zmqps.connect(cluster.address),
            zmqps.connect(cluster.address),
        ]
        assert all(worker.status()["members"] for worker in stay)
        for worker in stay:
            worker.close()


def test_without_an_address_the_environment_says_where_the_coordinator_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with InProcessCluster() as cluster:
        host, _, port = cluster.address.removeprefix("tcp://").partition(":")
        monkeypatch.setenv("DMLC_PS_ROOT_URI", host)
        monkeypatch.setenv("DMLC_PS_ROOT_PORT", port)
        with caplog.at_level("INFO", logger="zmqps"), zmqps.connect() as worker:
            assert (worker.address, worker.rank) == (cluster.address, 0)
    assert f"the coordinator is {cluster.address}, says DMLC_PS_ROOT_URI" in caplog.text
