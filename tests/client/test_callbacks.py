"""Callbacks of futures run on a background thread: what would wait there is refused before anything is begun."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import PATIENCE, InProcessCluster
from tests.tables import for_each
from zmqps.errors import ConfigurationError

NEVER = 1 << 40
ONE = {"w": np.ones(4, np.float32)}
PARAMS = {"w": np.zeros(4, np.float32)}


def wait_for(worker: zmqps.Worker, how: str) -> Any:
    """Wait for a future that is not done by then."""
    future = worker.pull_async(at_least=NEVER, timeout=PATIENCE)
    try:
        return getattr(future, how)()
    finally:
        future.cancel()


#: All that blocks.
BLOCKING: dict[str, Callable[[zmqps.Worker], Any]] = {
    "init": lambda worker: worker.init(PARAMS, optimizer=zmqps.optim.sgd(1.0), mode="async"),
    "pull": lambda worker: worker.pull(),
    "pull_each": lambda worker: worker.pull_each(),
    "push": lambda worker: worker.push(ONE),
    "push_pull": lambda worker: worker.push_pull(ONE),
    "advance": lambda worker: worker.advance(),
    "barrier": lambda worker: worker.barrier("here", timeout=PATIENCE),
    "ranges": lambda worker: next(worker.ranges(10, 5)),
    "status": lambda worker: worker.status(),
    "statistics": lambda worker: worker.statistics(),
    "rejoin": lambda worker: worker.rejoin(),
    "finish": lambda worker: worker.finish(),
    "close": lambda worker: worker.close(),
    "result": lambda worker: wait_for(worker, "result"),
    "exception": lambda worker: wait_for(worker, "exception"),
    "connect": lambda worker: zmqps.connect(worker.address),
}


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[zmqps.Worker, zmqps.Worker]]:
    with InProcessCluster() as cluster, zmqps.connect(cluster.address) as one, zmqps.connect(cluster.address) as other:
        one.init(PARAMS, optimizer=zmqps.optim.sgd(1.0), mode="async")
        other.pull()
        yield one, other


def called_back(worker: zmqps.Worker, call: Callable[[], Any]) -> BaseException | None:
    """Return what a call raises in a callback of a worker's future."""
    called = threading.Event()
    raised: list[BaseException | None] = []

    def callback(_: object) -> None:
        try:
            call()
            raised.append(None)
        except BaseException as error:
            raised.append(error)
        called.set()

    parked = worker.pull_async(at_least=NEVER, timeout=PATIENCE)  # which is not done before its callback is there
    parked.add_done_callback(callback)
    parked.cancel()
    assert called.wait(PATIENCE)
    return raised[0]


@for_each("name", BLOCKING)
@for_each("whose", ["its own", "another's"])
def test_nothing_waits_in_a_callback(workers, name: str, whose: str) -> None:  # type: ignore[no-untyped-def]
    one, other = workers
    before = one.statistics().pushes, other.statistics().pushes
    used = one if whose == "its own" else other
    error = called_back(one, lambda: BLOCKING[name](used))
    assert isinstance(error, ConfigurationError)
    assert "hand over to another thread" in str(error)
    one.pull()
    other.pull()
    assert (one.statistics().pushes, other.statistics().pushes) == before, "it was refused, and done nevertheless"


def test_a_callback_may_begin_what_it_does_not_wait_for(workers) -> None:  # type: ignore[no-untyped-def]
    one, _ = workers
    begun = []
    assert called_back(one, lambda: begun.append(one.pull_async())) is None
    assert set(begun[0].result(PATIENCE)) == {"w"}
    assert called_back(one, lambda: begun[0].result()) is None, "it is done, so nothing waits"
