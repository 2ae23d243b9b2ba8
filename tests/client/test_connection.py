"""A connection's own: how long a call waits that is given no timeout."""

from __future__ import annotations

import pytest

import zmqps
from tests.inprocess import PATIENCE, InProcessCluster


@pytest.mark.parametrize(
    ("heartbeat_timeout", "timeout", "default"), [(10.0, PATIENCE, 60.0), (90.0, PATIENCE, 180.0), (90.0, 500.0, 500.0)]
)
def test_a_call_waits_longer_than_it_takes_to_lose_somebody(
    heartbeat_timeout: float, timeout: float, default: float
) -> None:
    with (
        InProcessCluster(heartbeat_timeout=heartbeat_timeout) as cluster,
        zmqps.connect(cluster.address, timeout=timeout) as worker,
    ):
        assert (worker._seconds(None), worker._seconds(3.0)) == (default, 3.0)
