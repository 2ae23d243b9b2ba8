"""`worker.ranges` on real processes, killed ones among them, and the static split."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.pace import allow, stretch
from zmqps.client.futures import begins
from zmqps.data import DataRange, split
from zmqps.errors import ConfigurationError, DeadlineError, JobMismatchError

PARAMS = {"w": np.zeros(4, np.float32)}

#: Uses ranges, saying which, until it is killed or there are no more; the one told to stops at a range and is killed.
WORKER = """
import sys, json, numpy as np, zmqps
address, stops_after = sys.argv[1], int(sys.argv[2])
with zmqps.connect(address) as worker:
    worker.init({"w": np.zeros(4, np.float32)}, optimizer=zmqps.optim.sgd(1.0), mode="sync")
    worker.barrier("start", timeout=60)
    for count, taken in enumerate(worker.ranges(500, 25, passes=2, shuffle_seed=3, timeout=50)):
        if count == stops_after:
            print(json.dumps("stopped"), flush=True)
            sys.stdin.read()
        worker.push({"w": np.ones(4, np.float32)}, examples=len(taken))
        print(json.dumps([taken.data_pass, taken.indices.tolist()]), flush=True)
    worker.finish()
"""


def start(address: str, stops_after: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, address, str(stops_after)]
    return subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.processes
def test_every_example_is_used_once_a_pass_although_workers_are_killed() -> None:
    with zmqps.LocalCluster(
        zmqps.Servers(kernels="numpy"),
        workers=3,
        limits=zmqps.Limits(heartbeat_interval=0.2, heartbeat_timeout=stretch(1.5)),
    ) as cluster:
        workers = [start(cluster.address, stops_after) for stops_after in (1, 4, 10**9)]
        lines: list[str] = []
        for victim in workers[:2]:
            assert victim.stdout is not None
            while (line := victim.stdout.readline()) and "stopped" not in line:
                lines.append(line)
            victim.kill()  # with a range that it has not used
            victim.communicate()
        rest, errors = workers[2].communicate(timeout=allow(50))
        assert workers[2].returncode == 0, errors
        used = [json.loads(line) for line in [*lines, *rest.splitlines()]]
    counts = Counter((data_pass, index) for data_pass, indices in used for index in indices)
    assert counts == Counter({(p, i): 1 for p in range(2) for i in range(500)})


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with InProcessCluster() as cluster:
        yield cluster


def test_workers_share_a_data_set_and_see_each_pass_in_another_order(cluster: InProcessCluster) -> None:
    def use(worker: zmqps.Worker) -> list[DataRange]:
        return list(worker.ranges(1000, 64, passes=2, shuffle_seed=1, name="shared"))

    with zmqps.connect(cluster.address) as a, zmqps.connect(cluster.address) as b, ThreadPoolExecutor(2) as pool:
        ranges = sorted([s for found in pool.map(use, (a, b)) for s in found], key=lambda s: (s.data_pass, s.number))
    orders = [np.concatenate([s.indices for s in ranges if s.data_pass == p]) for p in range(2)]
    assert all(np.array_equal(np.sort(order), np.arange(1000)) for order in orders)
    assert not np.array_equal(*orders)
    assert np.array_equal(orders[0], split(1000, 0, 1, shuffle_seed=1))
    assert [len(s) for s in ranges[:16]] == [64] * 15 + [40]


def test_a_loop_that_was_left_goes_on_with_its_range(cluster: InProcessCluster) -> None:
    with zmqps.connect(cluster.address) as worker:
        for taken in worker.ranges(100, 30, name="left"):
            if taken.number == 1:
                break
        assert [taken.number for taken in worker.ranges(100, 30, name="left")] == [1, 2, 3]
        assert list(worker.ranges(100, 30, name="left")) == []


def test_without_a_seed_ranges_are_slices(cluster: InProcessCluster) -> None:
    with zmqps.connect(cluster.address) as worker:
        ranges = list(worker.ranges(10, 4, name="plain"))
    assert [taken.indices.tolist() for taken in ranges] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [(taken.start, taken.stop) for taken in ranges] == [(0, 4), (4, 8), (8, 10)]


def test_who_waits_in_vain_is_told_for_whom_and_the_range_comes_back(cluster: InProcessCluster) -> None:
    with zmqps.connect(cluster.address) as waiting:
        with zmqps.connect(cluster.address, name="holder") as holder:
            next(holder.ranges(10, 10, name="awaited"))
            with pytest.raises(DeadlineError, match=r"waiting for worker \d \(holder.*range 0"):
                next(waiting.ranges(10, 10, name="awaited", timeout=0.5))
            (data,) = [d for d in waiting.status()["jobs"]["default"]["data"] if d["name"] == "awaited"]
            assert list(data["taken"].values()) == [0]
        assert next(waiting.ranges(10, 10, name="awaited")).number == 0


def test_a_description_that_differs_or_makes_no_sense_is_refused(cluster: InProcessCluster) -> None:
    with zmqps.connect(cluster.address) as a, zmqps.connect(cluster.address) as b:
        next(a.ranges(10, 10, name="described"))
        with pytest.raises(JobMismatchError, match="num_examples of the data set 'described'"):
            next(b.ranges(11, 10, name="described"))
        with pytest.raises(ConfigurationError, match="range_size"):
            b.ranges(11, 0)


def test_ranges_can_be_iterated_in_a_loop_of_asyncio(cluster: InProcessCluster) -> None:
    async def main() -> None:
        async with zmqps.aio.connect(cluster.address) as worker:
            found = [taken.start async for taken in worker.ranges(10, 3, name="aio")]
            assert found == [0, 3, 6, 9]

    asyncio.run(main())


def test_a_static_split_gives_each_rank_its_part() -> None:
    for seed in (None, 5):
        parts = [split(103, rank, 4, shuffle_seed=seed, data_pass=2) for rank in range(4)]
        assert [len(part) for part in parts] == [25, 26, 26, 26]
        assert sorted(np.concatenate(parts).tolist()) == list(range(103))
    assert split(3, 0, 4).size == 0
    for rank, workers in ((4, 4), (-1, 4), (0, 0), (0.5, 2)):
        with pytest.raises(ConfigurationError):
            split(10, rank, workers)  # type: ignore[arg-type]


def test_who_joins_before_the_workers_and_idles_takes_no_part_from_them() -> None:
    with InProcessCluster(workers=2) as cluster, zmqps.connect(cluster.address, name="idle") as idle:
        with zmqps.connect(cluster.address) as one, zmqps.connect(cluster.address) as other:
            assert (idle.rank, one.rank, other.rank) == (0, 1, 2)
            inits = [
                begins(zmqps.Worker.init)(w, {"w": np.ones(3, "f4")}, optimizer=zmqps.optim.sgd(0.1), mode="async")
                for w in (one, other)
            ]
            for init in inits:
                init.result(allow(20.0))
            parts = [split(9, worker.rank, worker.num_workers).tolist() for worker in (one, other)]
            assert sorted([*parts[0], *parts[1]]) == list(range(9))
            ranks = {m["rank"]: m["name"] for m in cluster.status()["members"] if m["role"] == "worker"}
            assert ranks[2] == "idle"
