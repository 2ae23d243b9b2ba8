"""Cancelled futures and awaits: what can be withdrawn is, at once, and nobody waits for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import zmqps.aio
from tests.inprocess import PATIENCE, InProcessCluster
from tests.modes import MODES
from zmqps.client.futures import begins

SGD = zmqps.optim.sgd(learning_rate=1.0)
PARAMS = {"w": np.zeros(1000, np.float32), "v": np.zeros(7, np.float32)}
NEVER = 10**6  # a version that does not come


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with InProcessCluster(servers=2) as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(PARAMS, optimizer=SGD, mode="async")
        yield cluster.address


def some_arrays() -> dict[str, np.ndarray]:
    return {name: np.full_like(value, 5.0) for name, value in PARAMS.items()}


def test_a_pull_that_is_cancelled_leaves_its_arrays_alone_and_finish_does_not_wait_for_it(address: str) -> None:
    out = some_arrays()
    with zmqps.connect(address) as worker:
        worker.pull()
        parked = worker.pull_async(out=out, at_least=NEVER)
        assert worker.statistics().in_flight_bytes > 0
        assert not parked.running()
        assert parked.cancel()
        assert parked.cancelled()
        assert concurrent.futures.wait([parked], timeout=0).done == {parked}
        assert parked.cancel(), "again"
        worker.finish(timeout=PATIENCE)
    assert all((array == 5.0).all() for array in out.values())


def test_what_is_done_cannot_be_cancelled(address: str) -> None:
    with zmqps.connect(address) as worker:
        pull = worker.pull_async()
        pull.result(PATIENCE)
        assert not pull.cancel()
        status = begins(zmqps.Worker.status)(worker)
        status.cancel()
        assert status.result(PATIENCE)["members"]
    assert not pull.cancel()


def test_a_cancelled_pull_of_each_is_withdrawn_as_a_whole(address: str) -> None:
    with zmqps.connect(address) as worker:
        futures = worker.pull_each_async(at_least=NEVER)
        assert futures["v"].cancel()
        assert futures["w"].cancelled()
        worker.finish(timeout=PATIENCE)


def test_a_callback_can_cancel(address: str) -> None:
    with zmqps.connect(address) as worker:
        parked = worker.pull_async(at_least=NEVER)
        cancelled: list[bool] = []
        called = threading.Event()

        def cancel(_: object) -> None:
            cancelled.append(parked.cancel())
            called.set()

        begins(zmqps.Worker.status)(worker).add_done_callback(cancel)
        assert called.wait(PATIENCE)
        assert cancelled == [True]
        worker.finish(timeout=PATIENCE)


def test_a_cancelled_await_withdraws_its_pull(address: str) -> None:
    async def main() -> None:
        async with zmqps.aio.connect(address) as worker:
            await worker.pull()
            out = some_arrays()
            waiting = asyncio.create_task(worker.pull(out=out, at_least=NEVER))
            while not (await worker.statistics()).in_flight_bytes:
                pass
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await worker.finish(timeout=PATIENCE)
            assert all((array == 5.0).all() for array in out.values())

    asyncio.run(main())


def test_an_await_that_is_cancelled_before_the_pull_was_begun_withdraws_it_then(address: str) -> None:
    async def main() -> None:
        async with zmqps.aio.connect(address) as worker:
            await worker.pull()
            waiting = asyncio.create_task(worker.pull(at_least=NEVER))
            await asyncio.sleep(0)  # the helper has it
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await worker.finish(timeout=PATIENCE)

    asyncio.run(main())


def test_a_loop_over_each_that_is_cancelled_withdraws_its_pull(address: str) -> None:
    async def main() -> None:
        async with zmqps.aio.connect(address) as worker:
            await worker.pull()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(worker.pull_each(at_least=NEVER)), 0.05)
            await worker.finish(timeout=PATIENCE)

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_pull_that_was_given_up_is_forgotten_by_the_servers_and_holds_up_nothing(mode: str) -> None:
    wide = {"w": np.zeros(500_000, np.float32)}  # 40 of them are more than a worker may have in flight
    with InProcessCluster(servers=2, workers=1) as cluster, zmqps.connect(cluster.address, transport="tcp") as worker:
        worker.init(wide, optimizer=SGD, **MODES[mode])
        for _ in range(40):
            with pytest.raises(zmqps.DeadlineError):
                worker.pull(at_least=1, timeout=0.01)
        assert worker.statistics().in_flight_bytes == 0
        cluster.wait_until(lambda status: counted(status, "pulls") == 0 and counted(status, "parked") == 0)
        worker.push(wide, timeout=PATIENCE)
        assert worker.pull(at_least=1, timeout=PATIENCE).version == 1
        cluster.wait_until(lambda status: counted(status, "pulls") > 1)
        assert counted(cluster.status(), "pulled_nbytes") == wide["w"].nbytes, "once, for the one that was waited for"


def counted(status: Mapping[str, Any], name: str) -> int:
    return sum(member["counters"].get(name, 0) for member in status["members"] if member["role"] == "server")
