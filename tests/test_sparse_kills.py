"""Workers that are killed in the middle of pushes of rows, and started again: each acknowledged push counts once."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.team import PATIENCE
from zmqps.core.job.tables import NUM_BUCKETS
from zmqps.rows.hashing import buckets_of, seed_of

pytestmark = pytest.mark.processes

Array = np.ndarray[Any, np.dtype[Any]]

WORKERS, LIVES, SERVERS = 3, 3, 3
#: Of a life: two bits of a float32 say how often each was applied to an element.
PUSHES = 11
DIM = WORKERS * LIVES
POOL = np.random.default_rng(0).integers(-(1 << 62), 1 << 62, 60)

#: Pushes marks into one element of rows, four pushes at a time, and says which are acknowledged. One that is to be
#: killed stops with some under way.
VICTIM = """
import sys, json
from collections import deque
import numpy as np, zmqps
address, name, element, stops_after, batches = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:])
with zmqps.connect(address, name=name, timeout=60) as worker:
    dim = 9
    worker.init({}, tables={"items": zmqps.table(dim, optimizer=zmqps.optim.sgd(1.0))}, mode="async", timeout=60)
    table, under_way = worker.table("items"), deque()
    for number, ids in enumerate(batches):
        grads = np.zeros((len(ids), dim), np.float32)
        grads[:, element] = -(4.0 ** number) / 2  # each id is there twice
        under_way.append((number, table.push_async(ids, grads, timeout=60)))
        if number == stops_after:
            print(json.dumps("stopped"), flush=True)
            sys.stdin.read()
        while len(under_way) == 4 or (under_way and number + 1 == len(batches)):
            done, future = under_way.popleft()
            future.result()
            print(json.dumps(done), flush=True)
"""


def batches_of(element: int) -> list[list[int]]:
    """Return the ids of the pushes of a life, each twice."""
    rng = np.random.default_rng(1 + element)
    return [rng.permutation(np.repeat(rng.choice(POOL, 12, replace=False), 2)).tolist() for _ in range(PUSHES)]


def live(cluster: zmqps.LocalCluster, number: int) -> dict[int, list[int]]:
    """Let a worker live several times; return by element which of its pushes were acknowledged."""
    acknowledged: dict[int, list[int]] = {}
    for life in range(LIVES):
        element, dies = number * LIVES + life, life + 1 < LIVES
        stops_after = 5 + life if dies else PUSHES + 1
        arguments = [cluster.address, f"worker {number}", *map(json.dumps, (element, stops_after, batches_of(element)))]
        process = subprocess.Popen(
            [sys.executable, "-c", VICTIM, *arguments], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            told = [json.loads(line) for line in iter(process.stdout.readline, '"stopped"\n' if dies else "")]
        finally:
            process.kill()
            rest, _ = process.communicate(timeout=PATIENCE)
        assert dies or process.returncode == 0
        acknowledged[element] = told + [json.loads(line) for line in rest.splitlines()]
    return acknowledged


@pytest.mark.timeout(180)
def test_acknowledged_pushes_count_once_and_others_as_a_whole_or_not_at_all() -> None:
    shards = buckets_of(POOL, seed_of("buckets", "items")) * SERVERS // NUM_BUCKETS
    table = zmqps.table(DIM, optimizer=zmqps.optim.sgd(1.0))
    with (
        zmqps.LocalCluster(zmqps.Servers(SERVERS, kernels="numpy")) as cluster,
        zmqps.connect(cluster.address, name="stays", timeout=PATIENCE) as stays,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        stays.init({}, tables={"items": table}, mode="async", timeout=PATIENCE)
        lives = [pool.submit(live, cluster, number) for number in range(WORKERS)]
        acknowledged = {element: told for future in lives for element, told in future.result().items()}
        rows = stays.table("items").pull(POOL, timeout=PATIENCE).astype(np.int64)

    for element in range(DIM):
        expected = np.zeros(POOL.size, np.int64)
        for number, ids in enumerate(batches_of(element)):
            named = np.isin(POOL, ids)
            there = rows[:, element] >> (2 * number) & 3
            assert not there[~named].any(), "a row has changed that was not named"
            assert (there <= 1).all(), "a push counts twice"
            if number in acknowledged[element]:
                assert there[named].all(), "an acknowledged push is lost"
            whole = [np.unique(there[named & (shards == shard)]) for shard in range(SERVERS)]
            assert all(found.size <= 1 for found in whole), "a message was applied in part"
            expected += there << (2 * number)
        np.testing.assert_array_equal(rows[:, element], expected)
        survives = element % LIVES == LIVES - 1
        assert len(acknowledged[element]) == PUSHES if survives else len(acknowledged[element]) < PUSHES
