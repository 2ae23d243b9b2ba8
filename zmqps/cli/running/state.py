"""Which cluster runs here: ``.zmqps/cluster.json``, locked by the supervisor as long as it lives.

The lock is the kernel's, so the file of a killed supervisor is not mistaken for a running cluster. The file is this
user's own, or it is not believed.

A cluster is ended from outside by its supervisor, or what a killed one has left is ended. A process is known by more
than its number, which may be another one's at any time: the supervisor by when it started, and what it has started by
a mark in the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self

from zmqps.errors import ConfigurationError, UnsafeFileError
from zmqps.folder import Folder
from zmqps.launch.processes import gone, has_mark, mark_of, marked, signal_if, start_of
from zmqps.net.system.host import host_tag

FOLDER, FILE = ".zmqps", "cluster.json"
#: A state is a few hundred bytes; more is not one.
MAX_NBYTES = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the file says.

    Attributes
    ----------
    pid
        The supervisor's.
    name
        The cluster's.
    address
        The coordinator's endpoint; empty until it is known.
    logs
        Directory of the log files.
    started
        When, in local time.
    page
        The page's address, with its token; empty: there is none.
    saves
        Whether its end takes as long as its jobs take to be saved.
    keys
        The directory of the cluster's keys, for the commands that ask it; empty: it has none.
    start
        What tells the supervisor from another process of its number; see `zmqps.launch.processes.start_of`.
    unsaved
        Whether it has ended, and a job without its last checkpoint: for a command that holds the file open meanwhile.
    host, host_name
        On which host it runs: hosts may share the directory, and numbers of processes are each host's own.
    running
        Whether the supervisor lives.
    """

    pid: int
    name: str
    address: str
    logs: str
    started: str
    page: str = ""
    keys: str = ""
    start: int = 0
    saves: bool = False
    unsaved: bool = False
    host: str = field(default_factory=host_tag)
    host_name: str = field(default_factory=socket.gethostname)
    running: bool = True

    @classmethod
    def of_this_process(cls, name: str, logs: Path, keys: Path | None, *, saves: bool) -> Self:
        """Return what this supervisor says before its cluster has an address."""
        from zmqps.launch.processes import start_of

        pid, started = os.getpid(), datetime.now().astimezone().isoformat(timespec="seconds")
        return cls(
            pid=pid, start=start_of(pid), name=name, address="", logs=str(logs), started=started, saves=saves,
            keys="" if keys is None else str(keys.absolute()),
        )  # fmt: skip

    @property
    def elsewhere(self) -> str:
        """The name of another host that it runs on; empty: it runs here, or did before this host restarted."""
        is_here = self.host == host_tag() or (not self.running and self.host_name == socket.gethostname())
        return "" if is_here else self.host_name


TEXTS = ("name", "address", "logs", "started", "page", "keys", "host", "host_name")
KINDS: dict[str, type] = {"pid": int, "start": int, "saves": bool, "unsaved": bool, **dict.fromkeys(TEXTS, str)}


def state_path(directory: Path) -> Path:
    """Return where the state of the cluster of a directory is kept."""
    return directory / FOLDER / FILE


def read_state(directory: Path) -> State | None:
    """Return the state, even if the supervisor was killed; None if there is none.

    Raises
    ------
    UnsafeFileError
        Another user may have written it.
    """
    file = open_state(directory)
    if file is None:
        return None
    with file:
        return state_in(file)


def open_state(directory: Path) -> BinaryIO | None:
    """Open the file, which can be read by `state_in` even after its cluster has ended; None if there is none.

    Raises
    ------
    UnsafeFileError
        Another user may have written it.
    """
    try:
        with Folder(directory, FOLDER) as folder:
            return open(folder.open(FILE, os.O_RDONLY), "rb")
    except FileNotFoundError:
        return None


def state_in(file: BinaryIO) -> State:
    """Return the state that an open file says now."""
    running = not _lock(file.fileno(), fcntl.LOCK_SH)
    try:
        facts = json.loads(os.pread(file.fileno(), MAX_NBYTES, 0))
        if {name: type(fact) for name, fact in facts.items()} == KINDS:
            return State(**facts, running=running)
    except (ValueError, AttributeError, RecursionError):
        pass
    # being written, or damaged; the lock's holder is running anyway
    return State(pid=0, name="", address="", logs="", started="", running=running)


def forget_state(directory: Path) -> None:
    """Remove the file, and its directory if that is all there was."""
    with contextlib.suppress(FileNotFoundError), Folder(directory, FOLDER) as folder:
        folder.remove(FILE)
    with contextlib.suppress(OSError):
        state_path(directory).parent.rmdir()


class Claim:
    """The right to run the one cluster of a directory; a context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = -1

    def __enter__(self) -> Self:
        path = state_path(self._directory)
        while True:
            try:
                with Folder(self._directory, FOLDER, make=True) as folder:
                    self._fd = folder.open(FILE, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                continue  # the one before us has just removed the directory
            if not _lock(self._fd, fcntl.LOCK_EX):
                os.close(self._fd)
                self._refuse_if_running()
                continue  # another process was just reading it
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._fd), path.lstat()):
                    return self
            os.close(self._fd)  # the one before us has removed the file between our open and our lock

    def _refuse_if_running(self) -> None:
        state = read_state(self._directory)
        if state is None or not state.running:
            return
        which = f" at {state.address} (supervisor pid {state.pid})" if state.address else ""
        where, there = "here", ""
        if state.elsewhere:
            where, there = f"on {state.elsewhere}, which shares this directory,", " there"
        raise ConfigurationError(
            f"a cluster is running {where} already{which}; end it with `zmqps down`{there}, or start another one "
            "with --directory DIR and another --address"
        )

    def write(self, state: State) -> None:
        """Say what runs."""
        facts: dict[str, Any] = asdict(state)
        del facts["running"]
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps(facts, indent=2).encode() + b"\n", 0)

    def __exit__(self, *_: object) -> None:
        forget_state(self._directory)
        os.close(self._fd)


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# --- ended from outside -------------------------------------------------------------------------


async def end_supervisor(pid: int, start: int, timeout: float, path: str) -> bool:
    """Ask a supervisor to end; kill it and what it has started when it does not. Return which.

    Raises
    ------
    UnsafeFileError
        The process of that number is not the one that had written the file at ``path``.
    """
    ended = asyncio.ensure_future(gone(pid))
    await asyncio.sleep(0)  # it holds on to the process now, before its number can be given away

    def is_it() -> bool:
        return start > 0 and start_of(pid) == start

    if not is_it():
        ended.cancel()
        await asyncio.wait([ended])
        why = f"process {pid}, which it names, is not the supervisor that this user has started"
        raise UnsafeFileError(path=path, why=why, advice="end the supervisor by hand, and remove the file")
    session = pid
    with contextlib.suppress(ProcessLookupError):
        session = os.getsid(pid)  # its own only where it was detached
    signal_if(pid, signal.SIGTERM, is_it)
    if (await asyncio.wait([ended], timeout=timeout))[0]:
        return True
    signal_if(pid, signal.SIGKILL, is_it)
    await ended
    await _kill_rest(session, mark_of(pid, start), timeout)
    return False


async def end_rest(pid: int, start: int, timeout: float) -> None:
    """Wait for what a killed supervisor has left to end by itself; kill it when it does not."""
    mark = mark_of(pid, start)
    rest = marked(pid, mark) if start > 0 else []
    if rest and (await asyncio.wait([asyncio.ensure_future(gone(process)) for process in rest], timeout=timeout))[1]:
        await _kill_rest(pid, mark, timeout)


async def _kill_rest(session: int, mark: dict[str, str], timeout: float) -> None:
    """Kill what a supervisor has started, and what that starts meanwhile, and wait until all of it has ended."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + timeout
    while rest := marked(session, mark):
        waits = [asyncio.ensure_future(gone(pid)) for pid in rest]
        await asyncio.sleep(0)
        for pid in rest:
            signal_if(pid, signal.SIGKILL, partial(has_mark, pid, mark))
        if (await asyncio.wait(waits, timeout=max(0.0, ends_at - loop.time())))[1]:
            return
