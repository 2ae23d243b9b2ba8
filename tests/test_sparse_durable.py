"""End to end: servers with sparse tables are killed, drained and added in mid-training, and every sum is exact."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.core.server.followed import followed
from tests.modes import MODES
from tests.pace import allow, stretch
from zmqps import optim
from zmqps.nodes.inquiry import drain_server

pytestmark = pytest.mark.processes

PATIENCE = allow(60.0)
DIM = 3
POOL = np.arange(-300, 300) * 1_000_000_007
TABLES = {name: zmqps.table(DIM, optimizer=optim.sgd(1.0)) for name in ("one", "other")}
WORKERS = 2


def train(
    address: str, mode: str, params: dict[str, Any], going: Callable[[int], bool], some: threading.Semaphore
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Train until all are told to stop; return the rows at the end, and the sum of what was pushed."""
    with zmqps.connect(address, timeout=PATIENCE) as worker:
        options = {"optimizer": optim.sgd(1.0)} if params else {}
        worker.init(params, tables=TABLES, **MODES[mode], workers=WORKERS, **options)
        rng = np.random.default_rng(worker.rank)
        sums = {name: np.zeros((POOL.size, DIM)) for name in TABLES}
        pushes = 0
        while going(pushes):
            for name in TABLES:
                which = rng.integers(0, POOL.size, 80)
                grads = rng.integers(-4, 5, (80, DIM)).astype(np.float32)
                table = worker.table(name)
                if mode == "async":
                    table.push_pull(POOL[which], grads, POOL[which])
                else:
                    table.push(POOL[which], grads, step=False)
                np.subtract.at(sums[name], which, grads)
            if params:
                worker.push({"w": -np.ones_like(params["w"])})
            elif mode != "async":
                worker.advance()
            pushes += 1
            if pushes == 5:
                some.release()
            worker.barrier(f"after {pushes}", timeout=PATIENCE)
        rows = {name: worker.table(name).rows(POOL) for name in TABLES}
        assert sum(len(ids) for ids, _ in worker.table("one").chunks(64)) == len(worker.table("one"))
        if params:
            w = worker.pull()["w"]
            assert (w == (pushes if mode == "sync" else WORKERS * pushes)).all()
        worker.barrier("all have read", timeout=PATIENCE)
        return rows, sums


def lose(cluster: zmqps.LocalCluster) -> None:
    os.kill(cluster.pids["server-1"], signal.SIGKILL)


def drain(cluster: zmqps.LocalCluster) -> None:
    drain_server(cluster.address, "server-1", timeout=PATIENCE)


def scale(cluster: zmqps.LocalCluster) -> None:
    for servers in (5, 3):
        cluster.scale(servers, timeout=PATIENCE)


TROUBLES = [(lose, 1), (drain, 0), (drain, 1), (scale, 0), (scale, 1)]
ALONE, BESIDE = {}, {"w": np.zeros(30_000, np.float32)}  # parameters
#: Each kind in each mode, with parameters every other time.
CASES = [
    pytest.param(trouble, replicas, mode, params, id=f"{trouble.__name__}-{replicas}-{mode}-{len(params)}")
    for (trouble, replicas), turn in zip(TROUBLES, itertools.cycle([0, 1]), strict=False)
    for mode, params in zip(MODES, [ALONE, BESIDE, ALONE, BESIDE][turn:], strict=False)
]


@pytest.mark.parametrize(("trouble", "replicas", "mode", "params"), CASES)
def test_no_row_is_lost_and_no_gradient_counts_twice(
    trouble: Callable[[zmqps.LocalCluster], None],
    replicas: int,
    mode: str,
    params: dict[str, Any],
    tmp_path: Path,
) -> None:
    over, counts, some = threading.Event(), list[int](), threading.Semaphore(0)

    def going(pushes: int) -> bool:
        if over.is_set() and not counts:
            counts.append(pushes + 3)
        return not counts or pushes < counts[0]

    with (
        zmqps.LocalCluster(
            servers=3, replicas=replicas, directory=tmp_path,
            limits=zmqps.Limits(heartbeat_interval=0.5, heartbeat_timeout=stretch(3.0)) if trouble is lose else None,
        ) as cluster,
        ThreadPoolExecutor(WORKERS) as pool,
        ExitStack() as stack,
    ):  # fmt: skip
        results = [pool.submit(train, cluster.address, mode, params, going, some) for _ in range(WORKERS)]
        for result in results:
            result.add_done_callback(lambda _: some.release())  # one that has failed is not waited for
        try:
            for _ in results:
                assert some.acquire(timeout=PATIENCE)
            observer = stack.enter_context(zmqps.connect(cluster.address, observer=True, timeout=PATIENCE))
            feed, copy = observer.table("one").changes(most=50), dict[int, list[float]]()
            followed(feed, copy)
            trouble(cluster)
            followed(feed, copy)
        finally:
            over.set()
        found = [result.result(PATIENCE) for result in results]
        followed(feed, copy)
    for name in TABLES:
        expected = sum(sums[name] for _, sums in found) / (WORKERS if mode == "sync" else 1)
        for rows, _ in found:
            np.testing.assert_array_equal(rows[name], expected)
        if name == "one":  # who has followed it meanwhile has a copy that is equal
            np.testing.assert_array_equal([copy.get(number, [0.0] * DIM) for number in POOL.tolist()], expected)
