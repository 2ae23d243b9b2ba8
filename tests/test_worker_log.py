"""What a script logs on live nodes: it is where ``--values`` says, once and in order, whatever becomes of the nodes."""

from __future__ import annotations

import asyncio
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.durable.nodes import Nodes
from tests.pace import allow, stretch

pytestmark = pytest.mark.processes

PATIENCE = allow(20.0)
PARAMS = {"w": np.zeros(4, np.float32)}
SGD = zmqps.optim.sgd(1.0)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(path: Path, node: str) -> list[int]:
    return [line["step"] for line in lines(path) if line["node"] == node]


def test_what_workers_and_observers_log_is_in_the_file_when_the_cluster_has_ended(tmp_path: Path) -> None:
    path, began_at = tmp_path / "log.jsonl", time.time()
    with zmqps.LocalCluster(
        zmqps.Servers(1, kernels="numpy"), watching=zmqps.Watching(values=[f"jsonl:{path}"])
    ) as cluster:
        with zmqps.connect(cluster.address, job="mine") as worker, zmqps.connect(cluster.address, job="mine") as other:
            worker.init(PARAMS, optimizer=SGD, mode="async")
            other.init(PARAMS, optimizer=SGD, mode="async")
            for step in range(50):
                worker.log({"loss": np.float32(1.0) / (step + 1), "lr": 0.5}, step=step)
            other.log({"loss": math.nan})
            with zmqps.connect(cluster.address, job="mine", observer=True) as observer:
                observer.log({"accuracy": np.array(0.75)}, step=7)
            assert worker.statistics().logged == 50
            worker.finish(timeout=PATIENCE)
            other.finish(timeout=PATIENCE)
    assert steps(path, "worker 0") == list(range(50))
    assert {line["job"] for line in lines(path)} == {"mine"}
    [last] = [line for line in lines(path) if line["node"] == "worker 0"][-1:]
    assert last["values"] == {"loss": pytest.approx(1 / 50), "lr": 0.5}
    assert [line["values"] for line in lines(path) if line["node"] == "worker 1"] == [{"loss": "NaN"}]
    [seen] = [line for line in lines(path) if line["node"] == "observer 0"]
    assert (seen["step"], seen["values"]) == (7, {"accuracy": 0.75})
    assert all(began_at - 1 <= line["time"] <= time.time() + 1 for line in lines(path))


def test_workers_of_a_host_that_combine_and_those_of_a_loop_log_as_all_others(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"

    async def awaiting(address: str) -> None:
        async with zmqps.aio.connect(address, job="loop") as worker:
            worker.log({"loss": 0.25}, step=1)
            await worker.finish()

    with zmqps.LocalCluster(
        zmqps.Servers(1, kernels="numpy"), watching=zmqps.Watching(values=[f"jsonl:{path}"])
    ) as cluster:
        with zmqps.connect(cluster.address, job="host", combine="host") as worker:
            worker.init(PARAMS, optimizer=SGD, mode="async", timeout=PATIENCE)
            worker.log({"loss": 0.5}, step=0)
            worker.finish(timeout=PATIENCE)
        asyncio.run(awaiting(cluster.address))
    assert [(line["job"], line["step"]) for line in lines(path)] == [("host", 0), ("loop", 1)]


def test_without_anybody_who_writes_it_logging_does_no_harm_and_a_closed_worker_refuses_it() -> None:
    with zmqps.LocalCluster(zmqps.Servers(1, kernels="numpy")) as cluster:
        with zmqps.connect(cluster.address) as worker:
            worker.log({"loss": 0.5})
            with pytest.raises(zmqps.ConfigurationError, match="must be one number"):
                worker.log({"loss": "low"})  # type: ignore[dict-item]
        with pytest.raises(zmqps.ClosedError):
            worker.log({"loss": 0.5})


def test_a_cluster_that_could_not_write_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(zmqps.ConfigurationError, match="names nothing"):
        zmqps.LocalCluster(watching=zmqps.Watching(values=["jsonl"]))
    with pytest.raises(zmqps.ConfigurationError, match="a sequence of texts"):
        zmqps.LocalCluster(watching=zmqps.Watching(values=f"jsonl:{tmp_path / 'log'}"))
    with pytest.raises(zmqps.ConfigurationError, match="is not to be found"):
        zmqps.LocalCluster(watching=zmqps.Watching(values=["no_such_module_at_all:make"])).start()


@pytest.mark.processes
def test_a_coordinator_that_is_killed_and_comes_back_takes_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Nodes(
        tmp_path, 1, journal=tmp_path / "journal", values=[f"jsonl:{path}"], heartbeat_interval=0.2,
        heartbeat_timeout=stretch(2.0), patience=60.0,
    ) as cluster, zmqps.connect(cluster.address, timeout=PATIENCE) as worker:  # fmt: skip
        worker.init(PARAMS, optimizer=SGD, mode="async")
        number = 0

        def written() -> int:
            return path.read_text().count("\n")  # of whole lines: the last one may be under way

        def log_until(wanted: int) -> None:
            nonlocal number
            until = time.monotonic() + PATIENCE
            while written() < wanted:
                assert time.monotonic() < until
                worker.log({"x": 1.0}, step=number)
                number += 1
                cluster.wait_until(lambda status: True)  # takes a moment

        log_until(20)
        cluster.kill("coordinator")
        killed_at = number
        for _ in range(100):
            worker.log({"x": 1.0}, step=number)
            number += 1
        cluster.restart("coordinator")
        log_until(written() + 20)
        worker.finish(timeout=PATIENCE)
    found = steps(path, "worker 0")
    assert found == sorted(set(found)), "none twice, and in order"
    missing = sorted(set(range(number)) - set(found))
    assert all(step < killed_at for step in missing), "what was logged while it was away is there"
    assert missing == list(range(missing[0], missing[-1] + 1)) if missing else True, "what it had not yet written"
