"""End to end: servers are drained in mid-training, and no acknowledged update is lost or applied twice."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import zmqps
from tests.modes import MODES
from tests.pace import allow
from zmqps.nodes.inquiry import drain_server

pytestmark = pytest.mark.processes

PATIENCE = allow(60.0)
ONES = {"w": np.full(300_000, -1, np.float32), "b": np.full(7, -1, np.float32)}


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("mode", ["async", "bounded", "sync"])
def test_a_server_that_is_drained_costs_nothing(mode: str, replicas: int, tmp_path: Path) -> None:
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

    said = list[str]()
    with (
        zmqps.LocalCluster(
            servers=3, replicas=replicas, slice_size=1 << 14, directory=tmp_path, kernels="numpy",
        ) as cluster,
        ThreadPoolExecutor(2) as pool,
    ):  # fmt: skip
        results = [pool.submit(train, cluster.address) for _ in range(2)]
        try:
            for _ in results:
                assert some.acquire(timeout=PATIENCE)
            text = drain_server(cluster.address, "server-1", timeout=PATIENCE, progress=said.append)
        finally:
            over.set()
        for values in (result.result(PATIENCE) for result in results):
            updates = int(values.pop("pushes")) * (2 if mode != "sync" else 1)
            for name, value in values.items():
                assert (value == updates).all(), f"{name}: {np.unique(value)} instead of {updates}"
        status = cluster.status()
    assert "server-1 has nothing any more" in text
    assert [row["how"] for row in status["gone"] if row["role"] == "server"] == ["drained"]
