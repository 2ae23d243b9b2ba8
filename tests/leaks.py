"""What a test leaves behind: processes, sockets and contexts of ZeroMQ, files of shared memory."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import uuid
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import zmq

# Every process a test starts inherits this, so a detached one is found after it has left our process tree.
RUN_TAG = "PYTEST_RUN_OF_ZMQPS"
os.environ[RUN_TAG] = uuid.uuid4().hex

SHARED_MEMORY = Path("/dev/shm")
#: Seconds that what is about to vanish may take before it counts as left behind.
ENDING = 2.0
#: The same for a file of a process that was killed: its server sweeps it when it misses the process.
SWEPT = 20.0
#: Between two looks at it.
LOOK = 0.02

ZmqObject = zmq.Context[Any] | zmq.Socket[Any]


class Made:
    """The sockets and contexts of ZeroMQ that exist, and which thread has made each.

    They are noted when they are made: looking for them among all objects would cost every test tens of milliseconds.
    Weak references, because being collected is the business of ResourceWarning.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # threads of clusters make sockets while a test looks
        self._by: weakref.WeakKeyDictionary[ZmqObject, weakref.ref[threading.Thread]] = weakref.WeakKeyDictionary()

    def note(self, cls: type[Any]) -> None:
        """Note all instances of a class from now on."""
        original = cls.__init__

        @functools.wraps(original)
        def noting(this: Any, *args: Any, **kwargs: Any) -> None:
            original(this, *args, **kwargs)
            with self._lock:
                self._by[this] = weakref.ref(threading.current_thread())

        cls.__init__ = noting

    def open(self) -> dict[ZmqObject, threading.Thread | None]:
        """Return those that are open; None is a thread that has ended and is gone."""
        with self._lock:
            return {thing: by() for thing, by in self._by.items() if not thing.closed}


made = Made()
made.note(zmq.Context)
made.note(zmq.Socket)


@dataclass(frozen=True)
class Before:
    """What there was when a test began: what a fixture of a wider scope holds is that fixture's to clean up."""

    processes: frozenset[psutil.Process]
    zmq_objects: frozenset[ZmqObject]
    files: frozenset[Path]
    #: Those of fixtures of a wider scope: all but the one that runs tests.
    threads: frozenset[threading.Thread]

    @classmethod
    def now(cls) -> Before:
        return cls(
            frozenset(psutil.process_iter()),
            frozenset(made.open()),
            frozenset(SHARED_MEMORY.glob("zmqps*")),
            frozenset(threading.enumerate()) - {threading.current_thread()},
        )


def left_behind(before: Before) -> list[str]:
    """Return in words what a test has left behind."""
    left = leaked_processes(before)
    left += [f"open {thing!r}" for thing in leaked_zmq_objects(before)]
    left += [f"file {path}" for path in leaked_files(before)]
    return left


def our_processes(before: Before) -> set[psutil.Process]:
    """Return the processes that this test run has started since and that still exist.

    It looks only at those that are new, as this is asked after every test.
    """
    new = set(psutil.process_iter()) - before.processes
    found = set(psutil.Process().children(recursive=True)) & new if new else set[psutil.Process]()
    for process in new:
        with contextlib.suppress(psutil.Error):  # gone meanwhile, or somebody else's
            if process.environ().get(RUN_TAG) == os.environ[RUN_TAG]:
                found.add(process)
    return found


def describe(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"process {process.pid} ({process.status()}): {' '.join(process.cmdline()) or process.name()}"
    return f"process {process.pid}"


def is_harmless(process: psutil.Process) -> bool:
    """Tell whether a process is nobody's fault: gone, dead but not reaped by init, or a helper of multiprocessing."""
    try:
        command = " ".join(process.cmdline())
        return process.status() == psutil.STATUS_ZOMBIE or "multiprocessing.resource_tracker" in command
    except psutil.Error:
        return True


def leaked_processes(before: Before) -> list[str]:
    new = our_processes(before)
    _, alive = psutil.wait_procs([process for process in new if not is_harmless(process)], timeout=ENDING)
    texts = [describe(process) for process in alive if not is_harmless(process)]
    for process in alive:  # the next test starts clean
        with contextlib.suppress(psutil.Error):
            process.kill()
    return texts


def leaked_zmq_objects(before: Before) -> list[ZmqObject]:
    """Return the new sockets and contexts that are open.

    What a thread has made that ran before the test is no leak unless it stays: the door of a server which serves a
    whole file opens two sockets for a moment, a second after the connection of an earlier test has ended.
    """
    patience = threading.Event()  # which nobody sets
    ends_at = time.monotonic() + ENDING
    while found := {t: by for t, by in made.open().items() if t not in before.zmq_objects}:
        own = [thing for thing, by in found.items() if by not in before.threads]
        if own or time.monotonic() > ends_at:
            return own or list(found)
        patience.wait(LOOK)
    return []


def is_of_another_run(path: Path) -> bool:
    """Tell whether the process of a file of shared memory, ``zmqps-<pid>-…``, is there and is none of ours."""
    with contextlib.suppress(psutil.Error, ValueError, IndexError):
        process = psutil.Process(int(path.name.split("-")[1]))
        ours = [process.pid, *(parent.pid for parent in process.parents())]
        if process.status() == psutil.STATUS_ZOMBIE:  # it has no environment, but a parent that has yet to hear
            return os.getpid() not in ours
        return process.pid != os.getpid() and process.environ().get(RUN_TAG) != os.environ[RUN_TAG]
    return False


def is_of_a_dead_process(path: Path) -> bool:
    """Tell whether the process of a file of shared memory, ``zmqps-<pid>-…``, has ended."""
    number = path.name.split("-")[1:2]
    return bool(number) and number[0].isdigit() and not psutil.pid_exists(int(number[0]))


def leaked_files(before: Before) -> list[Path]:
    """Return the new files of shared memory that stay.

    One whose process was killed may be another test's, which runs beside this one and has a server about to sweep it.
    """
    patience = threading.Event()  # which nobody sets
    began = time.monotonic()
    while found := [p for p in set(SHARED_MEMORY.glob("zmqps*")) - before.files if not is_of_another_run(p)]:
        if time.monotonic() > began + (SWEPT if all(map(is_of_a_dead_process, found)) else ENDING):
            return found
        patience.wait(LOOK)
    return []


def assert_gone(processes: Sequence[psutil.Process], timeout: float) -> None:
    """Assert that processes end in time; one that only its parent has yet to hear of has ended."""
    assert processes
    until = time.monotonic() + timeout
    while alive := [process for process in processes if _runs(process)]:
        assert time.monotonic() < until, alive
        psutil.wait_procs(alive, timeout=LOOK)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
