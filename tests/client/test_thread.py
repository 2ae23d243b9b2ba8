"""What callers ask of a worker's background thread is done in rounds, each of all that was asked by then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import PATIENCE, InProcessCluster

PARAMS = {"w": np.zeros(4, np.float32)}


@pytest.fixture(scope="module")
def worker() -> Iterator[zmqps.Worker]:
    with InProcessCluster() as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(PARAMS, optimizer=zmqps.optim.sgd(1.0), mode="async")
        yield worker


class Rounds:
    """Notes what is handed to the loop of a worker, and does something before."""

    def __init__(self, worker: zmqps.Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.thread = worker._member.connection.thread
        self.number = 0
        self.before: Callable[[], None] = lambda: None
        loop = self.thread._loop
        assert loop is not None
        hand_over = loop.call_soon_threadsafe

        def call_soon_threadsafe(callback: Callable[..., object], *arguments: Any) -> object:
            self.number += 1
            before, self.before = self.before, lambda: None
            before()
            return hand_over(callback, *arguments)

        monkeypatch.setattr(loop, "call_soon_threadsafe", call_soon_threadsafe)

    def hold(self) -> threading.Event:
        """Keep the loop from going on until the event that is returned is set."""
        held, go = threading.Event(), threading.Event()

        def wait() -> None:
            held.set()
            assert go.wait(PATIENCE)

        self.thread._call_soon(wait)
        self.thread._turns.wake()  # type: ignore[union-attr]
        assert held.wait(PATIENCE)
        return go


def test_many_operations_that_nobody_waits_for_begin_in_one_round(
    worker: zmqps.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Rounds(worker, monkeypatch)
    go = rounds.hold()
    before = rounds.number
    futures = [worker.push_async({"w": np.ones(4, np.float32)}) for _ in range(20)]
    assert rounds.number == before + 1
    go.set()
    for future in futures:
        future.result(PATIENCE)
    assert rounds.number == before + 1, "their answers need none"


def test_operations_begin_in_the_order_asked(worker: zmqps.Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, order = Rounds(worker, monkeypatch), list[int]()
    go, done = rounds.hold(), threading.Event()
    for number in range(20):
        rounds.thread._call_soon(lambda number=number: order.append(number))  # type: ignore[misc]
    rounds.thread._call_soon(done.set)
    go.set()
    assert done.wait(PATIENCE)
    assert order == list(range(20))


def test_a_call_that_fails_keeps_no_other_one_from_being_made(
    worker: zmqps.Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds, done = Rounds(worker, monkeypatch), threading.Event()
    go = rounds.hold()

    def fail() -> None:
        raise ValueError("a defect")

    rounds.thread._call_soon(fail)
    rounds.thread._call_soon(done.set)
    go.set()
    assert done.wait(PATIENCE)
    assert "a defect" in caplog.text


def test_a_signal_handler_need_not_wait_for_the_call_that_it_interrupts(
    worker: zmqps.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds, order = Rounds(worker, monkeypatch), list[str]()
    done = threading.Event()

    def handler() -> None:  # between the moment when a call is noted and that when somebody is told
        inner = threading.Event()
        rounds.thread._call_soon(inner.set)
        rounds.thread._turns.wake()  # type: ignore[union-attr]
        assert inner.wait(PATIENCE)
        order.append("handler")

    rounds.before = handler
    rounds.thread._call_soon(done.set)
    assert order == ["handler"]
    rounds.thread._turns.wake()  # type: ignore[union-attr]
    assert done.wait(PATIENCE)
