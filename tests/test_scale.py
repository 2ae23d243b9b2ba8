"""End to end: jobs lie on more servers, then on fewer, in mid-training, and no update is lost or applied twice."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import zmqps
from tests.modes import MODES
from tests.pace import allow

pytestmark = pytest.mark.processes

PATIENCE = allow(60.0)
ONES = {"w": np.full((300, 1000), -1, np.float32), "b": np.full(7, -1, np.float32)}


@pytest.mark.parametrize(("mode", "replicas"), [("async", 0), ("async", 1), ("bounded", 0), ("sync", 0), ("sync", 1)])
def test_jobs_that_lie_on_more_servers_and_then_on_fewer_lose_nothing(mode: str, replicas: int, tmp_path: Path) -> None:
    over, counts, some = threading.Event(), list[int](), threading.Semaphore(0)

    def train(address: str) -> dict[str, np.ndarray]:
        with zmqps.connect(address, timeout=PATIENCE) as worker:
            zeros = {name: np.zeros_like(g) for name, g in ONES.items()}
            worker.init(zeros, optimizer=zmqps.optim.sgd(learning_rate=1.0), **MODES[mode], workers=2)
            pushes = 0
            while True:
                worker.push_pull(ONES)
                pushes += 1
                if pushes == 5:
                    some.release()
                worker.barrier(f"after {pushes}", timeout=PATIENCE)
                if over.is_set() and pushes >= counts[0] if counts else False:
                    break
                if over.is_set() and not counts:
                    counts.append(pushes + 2)
            values = {name: np.array(value) for name, value in worker.pull().items()}
            worker.barrier("all have read", timeout=PATIENCE)
            return {**values, "pushes": np.array(pushes)}

    with (
        zmqps.LocalCluster(
            servers=2, replicas=replicas, slice_size=1 << 14, directory=tmp_path, kernels="numpy"
        ) as cluster,
        ThreadPoolExecutor(2) as pool,
    ):
        results = [pool.submit(train, cluster.address) for _ in range(2)]
        try:
            for _ in results:
                assert some.acquire(timeout=PATIENCE)
            shards = []
            for servers in (4, 3):
                text = cluster.scale(servers, timeout=PATIENCE)
                assert f"jobs are on {servers} servers" in text
                [job] = cluster.status()["jobs"].values()
                shards.append([row["share"] for row in job["job"]["placement"]])
        finally:
            over.set()
        for values in (result.result(PATIENCE) for result in results):
            updates = int(values.pop("pushes")) * (2 if mode != "sync" else 1)
            for name, value in values.items():
                assert (value == updates).all(), f"{name}: {np.unique(value)} instead of {updates}"
        status = cluster.status()
    assert [len(rows) for rows in shards] == [4, 3]
    assert all(max(rows) - min(rows) < 0.05 for rows in shards)
    assert [row["how"] for row in status["gone"] if row["role"] == "server"] == ["drained"]
