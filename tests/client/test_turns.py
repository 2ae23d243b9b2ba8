"""A caller who waits may run the loop; whoever does not wait never notices."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import PATIENCE, InProcessCluster
from zmqps.client import turns
from zmqps.client.turns import Turns, not_started, running
from zmqps.errors import ConfigurationError, InternalError

NEVER = 1 << 40
PARAMS = {"w": np.zeros(4, np.float32)}


@contextmanager
def served() -> Iterator[tuple[asyncio.AbstractEventLoop, Turns]]:
    """A loop with a thread in the background that runs it."""
    loop, over = asyncio.new_event_loop(), threading.Event()
    shared = Turns(loop)
    thread = threading.Thread(target=shared.serve, args=(over.is_set,))
    thread.start()
    try:
        yield loop, shared
    finally:
        over.set()
        loop.call_soon_threadsafe(loop.stop)
        shared.wake()
        thread.join(PATIENCE)
        loop.close()


def paused(loop: asyncio.AbstractEventLoop, shared: Turns) -> None:
    """Let the background thread rest."""
    resting = threading.Event()

    def pause() -> None:
        shared.pause()
        resting.set()

    loop.call_soon_threadsafe(pause)
    assert resting.wait(PATIENCE)


def run_here(loop: asyncio.AbstractEventLoop, shared: Turns, act: Callable[[], None] = lambda: None) -> list[int]:
    """Take a turn in which something is done; return which threads did it."""
    where: list[int] = []

    def work() -> None:
        act()
        where.append(get_ident())
        loop.stop()

    assert shared.take(lambda: loop.call_soon(work), lambda: bool(where), lambda: False)
    return where


def test_whoever_rests_leaves_the_loop_to_a_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "REST_S", PATIENCE)
    with served() as (loop, shared):
        assert not shared.take(pytest.fail, lambda: True, lambda: False), "nobody rests"
        paused(loop, shared)
        assert run_here(loop, shared) == [get_ident()]
        assert run_here(loop, shared) == [get_ident()], "it may come again"
        assert get_ident() not in running


def test_if_nobody_comes_the_background_thread_goes_on() -> None:
    with served() as (loop, shared):
        paused(loop, shared)
        done = threading.Event()
        loop.call_soon_threadsafe(done.set)  # without a word to anybody
        assert done.wait(PATIENCE)
        assert shared.holder != get_ident()


def test_whoever_is_given_something_to_do_goes_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "REST_S", 10 * PATIENCE)
    with served() as (loop, shared):
        paused(loop, shared)
        done = threading.Event()
        loop.call_soon_threadsafe(done.set)
        shared.wake()
        assert done.wait(PATIENCE)


def test_what_a_caller_leaves_the_background_thread_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "REST_S", 10 * PATIENCE)
    with served() as (loop, shared):
        paused(loop, shared)
        done, later = threading.Event(), threading.Event()

        def begin() -> None:
            loop.call_later(0.01, later.set)
            loop.call_soon(lambda: (done.set(), loop.stop()))

        assert shared.take(begin, done.is_set, lambda: not later.is_set())
        assert later.wait(PATIENCE)


def test_in_a_loop_of_the_callers_own_it_does_not_run_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "REST_S", PATIENCE)
    with served() as (loop, shared):
        paused(loop, shared)

        async def ask() -> bool:
            return shared.take(pytest.fail, lambda: True, lambda: False)

        assert not asyncio.run(ask())


def test_what_a_handler_of_a_signal_raises_comes_out_between_two_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "REST_S", PATIENCE)
    before = signal.getsignal(signal.SIGINT)
    with served() as (loop, shared):
        paused(loop, shared)
        ended = []

        def interrupted() -> None:
            signal.raise_signal(signal.SIGINT)
            ended.append("the event")  # is done to its end

        with pytest.raises(KeyboardInterrupt):
            shared.take(lambda: loop.call_soon(interrupted), lambda: False, lambda: True)
        assert ended == ["the event"]
        assert signal.getsignal(signal.SIGINT) is before
        done = threading.Event()
        loop.call_soon_threadsafe(done.set)
        assert done.wait(PATIENCE), "the background thread has the loop back"


def test_a_handler_that_raises_nothing_ends_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "REST_S", PATIENCE)
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    try:
        with served() as (loop, shared):
            paused(loop, shared)
            done = threading.Event()

            def begin() -> None:
                loop.call_soon(signal.raise_signal, signal.SIGUSR1)
                loop.call_later(0.01, lambda: (done.set(), loop.stop()))

            assert shared.take(begin, done.is_set, lambda: False)
            assert came == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_is_not_lost_where_the_turn_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "REST_S", PATIENCE)

    class Taken:
        """A lock that somebody else gets just before, while Ctrl-C is pressed."""

        def acquire(self, **options: Any) -> bool:
            signal.raise_signal(signal.SIGINT)
            return False

        def locked(self) -> bool:
            return True

    before = signal.getsignal(signal.SIGINT)
    with served() as (loop, shared):
        paused(loop, shared)
        with monkeypatch.context() as patch:
            patch.setattr(shared, "_turn", Taken())
            with pytest.raises(KeyboardInterrupt):
                shared.take(pytest.fail, lambda: True, lambda: False)
        assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[zmqps.Worker]:
    monkeypatch.setattr(turns, "REST_S", 2.0)
    with InProcessCluster() as cluster, zmqps.connect(cluster.address) as connected:
        connected.init(PARAMS, optimizer=zmqps.optim.sgd(1.0), mode="async")
        yield connected


def pull_here(worker: zmqps.Worker) -> None:
    """Pull until this thread runs the loop: now and then the background thread is told to go on for nothing."""
    until = time.monotonic() + PATIENCE
    while (
        worker._member.connection.thread._turns is None or worker._member.connection.thread._turns.holder != get_ident()
    ):
        assert time.monotonic() < until
        worker.pull()


def test_calls_one_after_the_other_run_in_their_callers_thread(worker: zmqps.Worker) -> None:
    pull_here(worker)
    worker.push_pull({"w": np.ones(4, np.float32)})
    assert worker._member.connection.thread._turns is not None
    assert worker._member.connection.thread._turns.holder == get_ident()
    assert worker.pull_async().result(PATIENCE)["w"].tolist() == [-1.0] * 4
    assert worker._member.connection.thread._turns.holder != get_ident(), "nobody waits while it computes"


def test_an_interrupted_call_leaves_the_worker_as_it_was(worker: zmqps.Worker) -> None:
    pull_here(worker)
    main, waits = get_ident(), threading.Event()
    machine = worker._member.connection.thread.machine
    begin = machine.transfers.begin

    def begun(*args: Any) -> Any:
        waits.set()
        return begin(*args)

    machine.transfers.begin = begun  # type: ignore[method-assign]

    def interrupt() -> None:
        if waits.wait(PATIENCE):
            signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        worker.pull(at_least=NEVER, timeout=PATIENCE)
    thread.join(PATIENCE)
    worker.push({"w": np.ones(4, np.float32)})
    assert worker.pull()["w"].tolist() == [-1.0] * 4


def test_several_threads_may_wait_at_once(worker: zmqps.Worker) -> None:
    def push() -> None:
        for _ in range(50):
            worker.push({"w": np.ones(4, np.float32)})

    threads = [threading.Thread(target=push) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert worker.pull()["w"].tolist() == [-200.0] * 4


def test_a_session_that_ends_meanwhile_says_so(worker: zmqps.Worker) -> None:
    pull_here(worker)
    closing = threading.Timer(0.05, worker.close)
    closing.start()
    with pytest.raises(zmqps.errors.ClosedError):
        worker.pull(at_least=NEVER, timeout=PATIENCE)
    closing.join(PATIENCE)


# --- a thread of its own ---------------------------------------------------------------------------


def test_a_worker_whose_thread_is_none_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Green:
        """A thread as gevent has them: it runs in the one that starts it."""

        def __init__(self, target: Callable[[], None], **_: object) -> None:
            self.start = target

    async def connect() -> None:
        monkeypatch.setattr("zmqps.client.thread.threading.Thread", Green)
        zmqps.connect("tcp://127.0.0.1:9", timeout=1.0)

    with pytest.raises(ConfigurationError, match=r"gevent.monkey.patch_all\(thread=False\)"):
        asyncio.run(connect())


def test_what_keeps_a_background_thread_from_its_work_is_an_error_of_ours() -> None:
    assert isinstance(not_started(OSError("no more files")), InternalError)
    error = ConfigurationError("as it is")
    assert not_started(error) is error
