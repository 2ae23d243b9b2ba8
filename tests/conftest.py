"""What every test gets: quiet maths libraries, hypothesis profiles, and the check that it leaves nothing behind."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# A shell without job control lets what it starts in the background ignore Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One thread per process, so that a test of ten processes loads two cores as ten threads and not as hundred.
# Before numpy is imported: its BLAS reads them once. Child processes inherit them.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# Every process a test starts inherits this, so a detached one is found after it has left our process tree.
RUN_TAG = "PYTEST_RUN_OF_ZMQPS"
os.environ[RUN_TAG] = uuid.uuid4().hex

import hypothesis  # noqa: E402
import psutil  # noqa: E402
import pytest  # noqa: E402
import zmq  # noqa: E402
from zmq.utils import garbage  # noqa: E402

# No deadline: the first example of a test may pay for a compilation. In CI the same examples every time,
# so that a red build is red for what changed; developers explore new ones.
# Few examples in every run, many where time does not matter: `HYPOTHESIS_PROFILE=thorough make test`.
hypothesis.settings.register_profile("default", deadline=None, max_examples=30)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=30, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))

SHARED_MEMORY = Path("/dev/shm")
#: Seconds a process that was told to end may take to vanish before it counts as left behind.
ENDING = 2.0


# --- tests that need a GPU ----------------------------------------------------------------------


@functools.cache
def gpu_missing() -> str:
    """Return why the GPU tests cannot run here, or an empty text."""
    try:
        import cupy

        return "" if cupy.cuda.runtime.getDeviceCount() else "no GPU"
    except Exception as error:  # CuPy missing, driver missing or too old: each has its own exception
        return f"no usable CuPy: {error}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and (reason := gpu_missing()):
        pytest.skip(reason)


# --- leaks --------------------------------------------------------------------------------------

# Sockets and contexts are noted when they are made: looking for them among all objects would cost every test
# tens of milliseconds. Weak references, because being collected is the business of ResourceWarning.
_zmq_objects: weakref.WeakSet[zmq.Context[Any] | zmq.Socket[Any]] = weakref.WeakSet()


def _note_instances(cls: type[Any]) -> None:
    original = cls.__init__

    @functools.wraps(original)
    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _zmq_objects.add(self)

    cls.__init__ = noting


_note_instances(zmq.Context)
_note_instances(zmq.Socket)


def our_processes(before: set[psutil.Process]) -> set[psutil.Process]:
    """Return the processes that this test run has started since ``before``, all that there were, and that still exist.

    It looks only at those that are new, as this is asked after every test.
    """
    new = set(psutil.process_iter()) - before
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


def leaked_processes(before: set[psutil.Process]) -> list[str]:
    new = our_processes(before)
    _, alive = psutil.wait_procs([process for process in new if not is_harmless(process)], timeout=ENDING)
    texts = [describe(process) for process in alive if not is_harmless(process)]
    for process in alive:  # the next test starts clean
        with contextlib.suppress(psutil.Error):
            process.kill()
    return texts


def is_of_another_run(path: Path) -> bool:
    """Tell whether a file of shared memory, ``zmqps-<pid>-…``, is in use by a process that is none of ours."""
    with contextlib.suppress(psutil.Error, ValueError, IndexError):
        pid = int(path.name.split("-")[1])
        return pid != os.getpid() and psutil.Process(pid).environ().get(RUN_TAG) != os.environ[RUN_TAG]
    return False


def leaked_files(before: set[Path]) -> list[Path]:
    """Return the new files of shared memory that stay.

    One whose process was killed may be another test's, which runs beside this one and has a server about to sweep it.
    """
    patience = threading.Event()  # which nobody sets
    ends_at = time.monotonic() + ENDING
    while found := [p for p in set(SHARED_MEMORY.glob("zmqps*")) - before if not is_of_another_run(p)]:
        if time.monotonic() > ends_at:
            return found
        patience.wait(0.05)
    return []


@pytest.fixture(autouse=True, scope="session")
def collector_of_pyzmq() -> Iterator[None]:
    """Start pyzmq's own helper of zero-copy sends here, so that no test is blamed for its sockets."""
    key = garbage.gc.store(b"")
    assert garbage.gc._push_socket is not None
    garbage.gc.refs.pop(key, None)
    yield
    garbage.gc.stop()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test after which a process, a ZeroMQ socket or context, or a shared-memory file remains.

    What a fixture of a wider scope holds existed before the test and is that fixture's to clean up.
    """
    processes = set(psutil.process_iter())
    zmq_objects = set(_zmq_objects)
    files = set(SHARED_MEMORY.glob("zmqps*"))
    yield
    left = leaked_processes(processes)
    left += [f"open {thing!r}" for thing in set(_zmq_objects) - zmq_objects if not thing.closed]
    left += [f"file {path}" for path in leaked_files(files)]
    if left:
        pytest.fail("the test left behind:\n  " + "\n  ".join(left), pytrace=False)
