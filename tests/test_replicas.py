"""Copies of shards over real sockets: what workers are told is applied, the backups have."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import PATIENCE, InProcessCluster
from zmqps import keys
from zmqps.core.server.tenant import Tenant

VALUES = {"a": np.zeros(100_000, np.float32), "b": np.zeros(1000, np.float32)}
ONES = {name: np.ones_like(value) for name, value in VALUES.items()}


def tenants(cluster: InProcessCluster) -> dict[int, Tenant]:
    """Return the copies of all servers, by their numbers."""
    machines = [driver.machine for driver in cluster.drivers[1:]]
    return {epoch: tenant for machine in machines for epoch, tenant in machine.tenants.items()}  # type: ignore[attr-defined]


def states(cluster: InProcessCluster) -> dict[int, list[tuple[bool, Any]]]:
    """Return of each shard its copies: whether they follow, and what is in them, as they are at one moment."""
    found = Future[dict[int, list[tuple[bool, Any]]]]()

    def look() -> None:
        copies: dict[int, list[tuple[bool, Any]]] = {}
        for tenant in tenants(cluster).values():
            shard = tenant.built()
            slices = [(s.version, s.value.tobytes(), *[slot.tobytes() for slot in s.slots]) for s in shard.slices]
            copies.setdefault(shard.index, []).append((tenant.follows, slices))
        found.set_result(copies)

    cluster._loop.call_soon_threadsafe(look)
    return found.result(PATIENCE)


def check(cluster: InProcessCluster) -> None:
    copies = states(cluster)
    assert len(copies) == 2
    for of_shard in copies.values():
        assert sorted(follows for follows, _ in of_shard) == [False, True]
        assert of_shard[0][1] == of_shard[1][1]


@pytest.mark.parametrize("codec", ["raw", "int8"])
def test_a_push_that_was_answered_is_on_both_servers(codec: str) -> None:
    with (
        InProcessCluster(servers=2, workers=1, replicas=1, slice_size=1 << 16) as cluster,
        zmqps.connect(cluster.address) as worker,
    ):
        worker.init(VALUES, optimizer=zmqps.optim.adam(0.1), mode="async", push_codec=codec)
        for _ in range(5):
            params = worker.push_pull(ONES)
        check(cluster)
        assert params["a"][0] == params["b"][-1] != 0.0


def test_servers_with_keys_keep_copies_too(tmp_path: Path) -> None:
    keys.create(tmp_path / "keys")
    with (
        InProcessCluster(tmp_path / "keys", servers=2, workers=1, replicas=1, slice_size=1 << 16) as cluster,
        zmqps.connect(cluster.address, security=zmqps.Security(keys=tmp_path / "keys")) as worker,
    ):
        worker.init(VALUES, optimizer=zmqps.optim.sgd(1.0), mode="async")
        worker.push_pull(ONES)
        check(cluster)


def test_a_step_that_is_over_is_on_both_servers() -> None:
    with (
        InProcessCluster(servers=2, workers=1, replicas=1, slice_size=1 << 16) as cluster,
        zmqps.connect(cluster.address) as worker,
    ):
        worker.init(VALUES, optimizer=zmqps.optim.sgd(1.0), mode="sync")
        for _ in range(5):
            worker.push(ONES)
            params = worker.pull()
        check(cluster)
        assert params["a"][0] == -5.0
