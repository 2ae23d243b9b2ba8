"""The end of a worker: when `close` returns nothing of it is open, whoever closed it and whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import zmqps.aio
from tests.inprocess import PATIENCE, InProcessCluster
from zmqps.client.futures import begins
from zmqps.client.thread import SessionThread
from zmqps.errors import ClosedError, DeadlineError
from zmqps.net.lane.shm import LaneTransport


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with InProcessCluster() as cluster:
        yield cluster.address


@pytest.fixture
def slow_close(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event, threading.Event]:
    """Let workers' transports stop at the door of `close`: return events for there, go on, and closed."""
    there, go_on, closed = threading.Event(), threading.Event(), threading.Event()
    close = LaneTransport.close

    def slowly(self: LaneTransport, linger: float) -> None:
        there.set()
        assert go_on.wait(PATIENCE)
        close(self, linger)
        closed.set()

    monkeypatch.setattr(LaneTransport, "close", slowly)
    return there, go_on, closed


def open_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("zmqps-aio", "zmqps_"))]


@pytest.mark.parametrize("observer", [False, True])
def test_whoever_closes_a_worker_waits_until_it_is_closed(address: str, observer: bool, slow_close) -> None:  # type: ignore[no-untyped-def]
    there, go_on, closed = slow_close
    worker = zmqps.connect(address, observer=observer)

    def close() -> bool:
        worker.close()
        return bool(closed.is_set())

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(close)
        assert there.wait(PATIENCE)
        second = pool.submit(close)
        with pytest.raises(DeadlineError, match="close timed out"):
            worker.close(timeout=0.05)
        go_on.set()
        assert first.result(PATIENCE)
        assert second.result(PATIENCE)
    worker.close()


def test_finish_returns_when_everything_is_closed(address: str, slow_close) -> None:  # type: ignore[no-untyped-def]
    there, go_on, closed = slow_close
    worker = zmqps.connect(address)
    with ThreadPoolExecutor(1) as pool:
        finished = pool.submit(worker.finish)
        assert there.wait(PATIENCE)
        assert not finished.done()
        go_on.set()
        finished.result(PATIENCE)
        assert closed.is_set()


def test_a_worker_whose_thread_is_held_up_says_so_and_ends_when_it_is_not(address: str) -> None:
    worker = zmqps.connect(address)
    held, release = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        if threading.current_thread() is not threading.main_thread():  # the answer was not there yet
            held.set()
            release.wait(PATIENCE)

    while not held.wait(0.05):
        begins(zmqps.Worker.status)(worker).add_done_callback(hold)
    if held.is_set():
        with pytest.raises(DeadlineError, match=r"close timed out.*callback of a future"):
            worker.close(timeout=0.05)
    release.set()
    worker.close()
    assert worker.statistics().pushes == 0
    with pytest.raises(ClosedError):
        worker.status()


def test_a_worker_that_is_closed_while_it_rejoins_stays_closed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = zmqps.connect(address)
    stop = SessionThread.stop

    def stop_and_close(self: SessionThread, timeout: float) -> bool:
        ended = stop(self, timeout)
        monkeypatch.setattr(SessionThread, "stop", stop)
        worker.close()  # another thread's close, at the worst moment
        return ended

    monkeypatch.setattr(SessionThread, "stop", stop_and_close)
    with pytest.raises(ClosedError, match="connect again"):
        worker.rejoin()
    assert not worker._member.connection.thread._thread.is_alive()


def test_statistics_can_be_asked_while_the_worker_is_closed(address: str, slow_close) -> None:  # type: ignore[no-untyped-def]
    there, go_on, _ = slow_close
    worker = zmqps.connect(address)
    worker.init({"w": np.zeros(3, np.float32)}, optimizer=zmqps.optim.sgd(1.0), mode="async")
    worker.push({"w": np.ones(3, np.float32)})
    with ThreadPoolExecutor(2) as pool:
        closing = pool.submit(worker.close)
        assert there.wait(PATIENCE)
        asked = pool.submit(worker.statistics)
        go_on.set()
        closing.result(PATIENCE)
        assert asked.result(PATIENCE).pushes == 1
    assert worker.statistics().pushes == 1


def test_a_worker_of_a_loop_leaves_no_thread(address: str) -> None:
    async def main() -> None:
        async with zmqps.aio.connect(address) as worker:
            await worker.status()
            assert open_threads()
        assert not open_threads()

    asyncio.run(main())


@pytest.mark.parametrize("where", ["_register", "_call_soon"])
def test_a_signal_handler_can_close_a_worker_that_its_thread_just_uses(
    address: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    worker = zmqps.connect(address)
    original = getattr(SessionThread, where)

    def interrupted(self: SessionThread, *args: object) -> None:
        monkeypatch.setattr(SessionThread, where, original)
        signal.raise_signal(signal.SIGUSR1)
        original(self, *args)

    before = signal.signal(signal.SIGUSR1, lambda *_: worker.close(timeout=PATIENCE))
    try:
        monkeypatch.setattr(SessionThread, where, interrupted)
        with pytest.raises(ClosedError):
            worker.status()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not worker._member.connection.thread._thread.is_alive()


def test_a_signal_handler_can_close_a_worker_that_rejoins(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = zmqps.connect(address)
    connection = worker._member.connection
    start = connection._start
    begun = []

    def interrupted() -> SessionThread:
        signal.raise_signal(signal.SIGUSR1)
        begun.append(start())
        return begun[0]

    before = signal.signal(signal.SIGUSR1, lambda *_: worker.close(timeout=PATIENCE))
    try:
        monkeypatch.setattr(connection, "_start", interrupted)
        with pytest.raises(ClosedError, match="connect again"):
            worker.rejoin(timeout=PATIENCE)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not begun[0]._thread.is_alive()
