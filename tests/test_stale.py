"""Treatments of stale gradients over real processes."""

from __future__ import annotations

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from zmqps.errors import ConfigurationError, JobMismatchError

ZERO, ONE = {"w": np.zeros(6, np.float32)}, {"w": np.ones(6, np.float32)}


def test_a_gradient_that_is_too_stale_is_dropped_and_its_worker_sees_it() -> None:
    with InProcessCluster() as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(
            ZERO,
            optimizer=zmqps.optim.sgd(1.0),
            mode="async",
            gradients=zmqps.Gradients(treatment=zmqps.stale.drop(bound=1)),
        )
        with pytest.raises(JobMismatchError, match="treatment"):
            worker.init(
                ZERO,
                optimizer=zmqps.optim.sgd(1.0),
                mode="async",
                gradients=zmqps.Gradients(treatment=zmqps.stale.drop(bound=2)),
            )
        worker.pull()
        for _ in range(4):  # without reading again: 0, 1, then 2 behind for ever
            worker.push(ONE)
        np.testing.assert_array_equal(worker.pull()["w"], -2.0 * ONE["w"])
        worker.push(ONE)
        statistics = worker.statistics()
        assert (statistics.pushes, statistics.dropped, statistics.staleness_max) == (5, 2, 2)
        assert worker.status()["jobs"]["default"]["job"]["treatment"] == {"name": "drop", "bound": 1}


def test_delays_are_compensated_by_servers_that_remember_what_each_worker_read() -> None:
    with InProcessCluster() as cluster:
        with zmqps.connect(cluster.address) as one, zmqps.connect(cluster.address) as other:
            for worker in (one, other):
                worker.init(
                    ZERO,
                    optimizer=zmqps.optim.sgd(1.0),
                    mode="async",
                    gradients=zmqps.Gradients(treatment=zmqps.stale.compensate(0.5)),
                )
                worker.pull()
            one.push(ONE)
            other.push(ONE)
            np.testing.assert_allclose(one.pull()["w"], -1.0 - (1.0 + 0.5 * -1.0) * ONE["w"])


def test_a_treatment_that_is_none_is_refused_before_anything_is_sent() -> None:
    with InProcessCluster() as cluster, zmqps.connect(cluster.address) as worker:
        with pytest.raises(ConfigurationError, match=r"zmqps\.stale"):
            worker.init(ZERO, optimizer=zmqps.optim.sgd(1.0), mode="async", gradients=zmqps.Gradients(treatment="drop"))  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="synchronous"):
            worker.init(
                ZERO,
                optimizer=zmqps.optim.sgd(1.0),
                mode="sync",
                gradients=zmqps.Gradients(treatment=zmqps.stale.divide()),
            )
        for make, value in ((zmqps.stale.drop, -1), (zmqps.stale.compensate, 0.0)):
            with pytest.raises(ConfigurationError):
                make(value)
