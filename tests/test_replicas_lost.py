"""End to end: a server is killed in mid-training, its backup takes over, and nothing acknowledged is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import zmqps
from tests.modes import MODES
from tests.pace import allow, stretch

pytestmark = pytest.mark.processes

PATIENCE = allow(60.0)
PUSHES = 40
ONES = {"w": np.full(30_000, -1, np.float32), "b": np.full(7, -1, np.float32)}


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_server_that_is_killed_costs_nothing_that_was_acknowledged(mode: str, tmp_path: Path) -> None:
    some, waits = threading.Event(), list[float]()

    def train(address: str) -> dict[str, np.ndarray]:
        with zmqps.connect(address, timeout=PATIENCE) as worker:
            zeros = {name: np.zeros_like(g) for name, g in ONES.items()}
            worker.init(zeros, optimizer=zmqps.optim.sgd(learning_rate=1.0), **MODES[mode], workers=2)
            for push in range(PUSHES):
                began = time.monotonic()
                worker.push_pull(ONES)
                waits.append(time.monotonic() - began)
                if push == PUSHES // 4:
                    some.set()
            worker.barrier("all have pushed", timeout=PATIENCE)
            values = {name: np.array(value) for name, value in worker.pull().items()}
            worker.barrier("all have read", timeout=PATIENCE)
            return values

    with (
        zmqps.LocalCluster(
            zmqps.Servers(3, kernels="numpy"), replicas=1, directory=tmp_path,
            limits=zmqps.Limits(heartbeat_interval=0.5, heartbeat_timeout=stretch(3.0), slice_size=1 << 14),
        ) as cluster,
        ThreadPoolExecutor(2) as pool,
    ):  # fmt: skip
        results = [pool.submit(train, cluster.address) for _ in range(2)]
        assert some.wait(PATIENCE)
        os.kill(cluster.pids["server-1"], signal.SIGKILL)
        updates = 2 * PUSHES if mode == "async" else PUSHES
        for values in (result.result(PATIENCE) for result in results):
            for name, value in values.items():
                assert (value == updates).all(), f"{name}: {np.unique(value)} instead of {updates}"
    logs = "".join(path.read_text() for path in tmp_path.rglob("*.log"))
    assert "takes over shard" in logs or max(waits) < 1.0
