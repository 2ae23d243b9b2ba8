"""A live server whose requests for memory fail now and then: values are exactly what was acknowledged."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.core.machines import job, placement
from tests.inprocess import InProcessCluster
from tests.modes import MODES
from tests.tables import for_each
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.protocol.message import MAX_BACKLOG_NBYTES
from zmqps.core.server.builds import Room
from zmqps.core.server.dense.buffers import GRANT_NBYTES, LEAST_NBYTES
from zmqps.core.server.dense.memory import HostMemory
from zmqps.errors import ServerMemoryError
from zmqps.nodes.server import ServerConfig, make_shard
from zmqps.optim import sgd

NAMES = [f"p{i}" for i in range(8)]
SIZE = 2000


@pytest.fixture
def short_of_memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Let requests for memory fail with a probability that the test sets, and count those that did."""
    state, rng, empty = {"probability": 0.0, "failed": 0}, Random(1), HostMemory.empty

    def scarce(memory: HostMemory, size: int, dtype: np.dtype[Any]) -> Any:
        if rng.random() < state["probability"]:
            state["failed"] += 1
            raise MemoryError(f"no {size} elements")
        return empty(memory, size, dtype)

    monkeypatch.setattr(HostMemory, "empty", scarce)
    return state


def until_it_works(do: Any, *arguments: Any, **options: Any) -> Any:
    """Return what a call returns once memory is not short."""
    for _ in range(500):
        with suppress(ServerMemoryError):
            return do(*arguments, **options)
    raise AssertionError("it never worked")


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_values_are_what_was_acknowledged(mode: str, short_of_memory: dict[str, float]) -> None:
    options = {"servers": 1, "workers": 1, "slice_size": 16 << 10, "once": True}
    with InProcessCluster(**options) as cluster, zmqps.connect(cluster.address) as worker:
        zeros = {name: np.zeros(SIZE, np.float32) for name in NAMES}
        optimizer = sgd(1.0, momentum=0.5) if mode == "async" else sgd(1.0)
        worker.init(zeros, optimizer=optimizer, **MODES[mode])
        short_of_memory["probability"] = 0.05
        value = velocity = 0.0
        for step in range(8):
            gradient = {name: np.full(SIZE, step + 1, np.float32) for name in NAMES}
            # in one message, as several of one push may be applied apart in the asynchronous mode
            until_it_works(worker.push, gradient, atomic=mode == "async")
            velocity = velocity * (0.5 if mode == "async" else 0.0) + step + 1
            value -= velocity
            got = until_it_works(worker.pull)
            assert all((got[name] == value).all() for name in NAMES), step
        assert short_of_memory["failed"] > 2


def config(**options: Any) -> ServerConfig:
    return ServerConfig(coordinator="tcp://127.0.0.1:1", kernels="numpy", **options)


def test_beside_its_values_a_large_shard_has_room_for_what_waits_to_be_sent() -> None:
    nbytes = 3 * MAX_BACKLOG_NBYTES
    spec = job("w", size=nbytes // 4)
    where = Placement.balance(KeySpace(spec.parameters), 1, 4 << 20)
    for workers in (1, 2):
        shard = make_shard(config(), spec, where, 0, Room(num_workers=workers))
        assert shard.required_nbytes == nbytes + workers * MAX_BACKLOG_NBYTES
        assert shard.dense.beside.limit == workers * MAX_BACKLOG_NBYTES


@for_each("options, expected", [({}, 3 * GRANT_NBYTES), ({"memory": 1 << 20}, GRANT_NBYTES)])
def test_servers_that_share_a_host_ask_for_each_other(options: dict[str, int], expected: int) -> None:
    spec, asked = job("w"), list[int]()

    def more(nbytes: int) -> bool:
        asked.append(nbytes)
        return False

    room = Room(available_nbytes=1 << 20, sharing=3)
    shard = make_shard(config(**options), spec, placement(spec), 0, room, more=more)
    assert not shard.dense.beside.fits(LEAST_NBYTES, 1)
    assert asked == [expected]
