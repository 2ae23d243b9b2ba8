"""End to end: jobs lie on more servers, then on fewer, in mid-training, and no update is lost or applied twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import zmqps
from tests.while_trained import PATIENCE, while_trained

pytestmark = pytest.mark.processes

ONES = {"w": np.full((300, 1000), -1, np.float32), "b": np.full(7, -1, np.float32)}


@pytest.mark.parametrize(("mode", "replicas"), [("async", 0), ("async", 1), ("bounded", 0), ("sync", 0), ("sync", 1)])
def test_jobs_that_lie_on_more_servers_and_then_on_fewer_lose_nothing(mode: str, replicas: int, tmp_path: Path) -> None:
    shards = []
    with zmqps.LocalCluster(
        zmqps.Servers(2, kernels="numpy"),
        replicas=replicas,
        limits=zmqps.Limits(slice_size=1 << 14),
        directory=tmp_path,
    ) as cluster:
        with while_trained(cluster.address, ONES, mode):
            for servers in (4, 3):
                text = cluster.scale(servers, timeout=PATIENCE)
                assert f"jobs are on {servers} servers" in text
                [job] = cluster.status()["jobs"].values()
                shards.append([row["share"] for row in job["job"]["placement"]])
        status = cluster.status()
    assert [len(rows) for rows in shards] == [4, 3]
    assert all(max(rows) - min(rows) < 0.05 for rows in shards)
    assert [row["how"] for row in status["gone"] if row["role"] == "server"] == ["drained"]
