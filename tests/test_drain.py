"""End to end: servers are drained in mid-training, and no acknowledged update is lost or applied twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import zmqps
from tests.while_trained import PATIENCE, while_trained
from zmqps.nodes.inquiry import drain_server

pytestmark = pytest.mark.processes

ONES = {"w": np.full(300_000, -1, np.float32), "b": np.full(7, -1, np.float32)}


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("mode", ["async", "bounded", "sync"])
def test_a_server_that_is_drained_costs_nothing(mode: str, replicas: int, tmp_path: Path) -> None:
    said = list[str]()
    with zmqps.LocalCluster(
        zmqps.Servers(3, kernels="numpy"),
        replicas=replicas,
        limits=zmqps.Limits(slice_size=1 << 14),
        directory=tmp_path,
    ) as cluster:
        with while_trained(cluster.address, ONES, mode):
            text = drain_server(cluster.address, "server-1", timeout=PATIENCE, progress=said.append)
        status = cluster.status()
    assert "server-1 is empty" in text
    assert [row["how"] for row in status["gone"] if row["role"] == "server"] == ["drained"]
