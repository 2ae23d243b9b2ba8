"""What counts as left behind by a test, and what is a fixture's of a wider scope, whose threads go on meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

from tests import leaks
from tests.leaks import Before, is_of_a_dead_process, left_behind
from tests.pace import allow

PATIENCE = allow(20.0)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


class Beside:
    """A thread that opens a socket when it is told to, and closes it when it is told to."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.begin, self.opened, self.end = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run, args=(context,))
        self._thread.start()

    def _run(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        assert self.begin.wait(PATIENCE)
        with context.socket(zmq.PULL):
            self.opened.set()
            assert self.end.wait(PATIENCE)

    def open(self) -> None:
        self.begin.set()
        assert self.opened.wait(PATIENCE)

    def close(self) -> None:
        self.begin.set()
        self.end.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@contextmanager
def beside(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[Beside]:
    thread = Beside(context)
    try:
        yield thread
    finally:
        thread.close()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Return a function that has another one called once the check has looked."""

    def after_a_look(do: Callable[[], None]) -> None:
        look = leaks.made.open

        def looking() -> dict[Any, Any]:
            found = look()
            do()
            return found

        monkeypatch.setattr(leaks.made, "open", looking)

    return after_a_look


def test_a_socket_that_a_wider_fixtures_thread_has_for_a_moment_is_not_the_tests(
    context: zmq.Context[zmq.Socket[bytes]], looked: Callable[[Callable[[], None]], None]
) -> None:
    with beside(context) as thread:
        before = Before.now()
        thread.open()
        looked(thread.end.set)
        assert left_behind(before) == []


def test_one_that_it_goes_on_to_hold_is_found(
    context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "ENDING", 0.1)
    with beside(context) as thread:
        before = Before.now()
        thread.open()
        (text,) = left_behind(before)
        assert "PULL" in text


def test_a_socket_of_the_tests_own_is_found_at_once(
    context: zmq.Context[zmq.Socket[bytes]], looked: Callable[[Callable[[], None]], None]
) -> None:
    before = Before.now()
    with context.socket(zmq.PUSH) as socket:
        looked(lambda: socket.close(0))
        (text,) = left_behind(before)
    assert "PUSH" in text


def test_so_is_one_of_a_thread_that_the_test_has_started(
    context: zmq.Context[zmq.Socket[bytes]], looked: Callable[[Callable[[], None]], None]
) -> None:
    before = Before.now()
    with beside(context) as thread:
        thread.open()
        looked(thread.end.set)
        (text,) = left_behind(before)
    assert "PULL" in text


def test_a_context_is_found_and_a_closed_one_is_not() -> None:
    before = Before.now()
    with zmq.Context() as context:
        (text,) = left_behind(before)
        assert "Context" in text
    assert context.closed
    assert left_behind(before) == []


def test_a_file_of_a_killed_process_may_be_swept_later_than_a_file_of_a_living_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(leaks, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(leaks, "ENDING", 0.0)
    before = Before.now()
    with subprocess.Popen([sys.executable, "-c", ""]) as killed:
        killed.wait()
    swept, left = tmp_path / f"zmqps-{killed.pid}-swept", tmp_path / f"zmqps-{os.getpid()}-left"
    swept.touch()
    looks: list[Path] = []

    def looking(path: Path) -> bool:
        looks.append(path)
        if len(looks) == 3:
            path.unlink()
        return is_of_a_dead_process(path)

    monkeypatch.setattr(leaks, "is_of_a_dead_process", looking)
    assert leaks.leaked_files(before) == []
    assert looks == 3 * [swept]
    left.touch()
    assert leaks.leaked_files(before) == [left]


def test_a_file_of_a_zombie_is_its_parents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        process = psutil.Process(ended.pid)
        until = time.monotonic() + PATIENCE
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until
            os.sched_yield()
        path = tmp_path / f"zmqps-{ended.pid}-left"
        assert not leaks.is_of_another_run(path)
        monkeypatch.setattr(os, "getpid", lambda: 1 << 30)
        assert leaks.is_of_another_run(path)
