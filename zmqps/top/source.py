"""What the terminal shows: the newest view, the end of a node's log, and what can be tried at a node that is stuck."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zmqps.errors import DeadlineError, PSError, printable
from zmqps.files import read_kernel
from zmqps.folder import Folder
from zmqps.logs.lines import read_entry

#: From one view to the next, and how long an answer may take.
EVERY_S, TIMEOUT_S = 1.0, 3.0


class Source:
    """The newest view of a cluster.

    Parameters
    ----------
    ask
        Returns a view, or raises why there is none; called in a thread.
    clock
        Seconds, monotonic.

    Attributes
    ----------
    view
        The newest one; empty before the first.
    """

    def __init__(self, ask: Callable[[], Mapping[str, Any]], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self.view: Mapping[str, Any] = {}
        self._seen_at = clock()
        self._error: PSError | None = None

    async def update(self) -> bool:
        """Ask once; return whether there was an answer."""
        try:
            view = await asyncio.to_thread(self._ask)
        except PSError as error:
            self._error = error
            return False
        self.view, self._error, self._seen_at = view, None, self._clock()
        return True

    @property
    def trouble(self) -> str:
        """Why what is shown is old, in words; empty while it is not."""
        if self._error is None:
            return ""
        silent = self._clock() - self._seen_at
        if isinstance(self._error, DeadlineError):
            shown = "; this is what it said last" if self.view else ""
            return f"the coordinator has not answered for {silent:.0f} s{shown}"
        return str(self._error)


#: What is read of the end of a log.
TAIL_NBYTES = 64 << 10
MOST_LINES = 400


def tail(directory: Path, cluster: str, node: str, host: str) -> list[str]:
    """Return the last lines of a node's log; else one that says where it may be.

    Parameters
    ----------
    directory
        Where runs/ is.
    cluster
        Its name.
    node
        As its log is called: ``worker-2``.
    host
        Where it runs.

    Raises
    ------
    UnsafeFileError
        The directory, or the log, is another user's.
    """
    elsewhere = f"the log of {node} is not here: look on {host}, or run this where the cluster was started"
    try:
        with Folder(directory, "runs", cluster, "logs") as folder:
            names = [name for name in os.listdir(folder.fd) if name == f"{node}.log" or name.startswith(f"{node}@")]
            if not names:
                return [elsewhere]
            with open(folder.open(names[0], os.O_RDONLY), "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - TAIL_NBYTES))
                text = file.read(TAIL_NBYTES).decode(errors="replace")
    except FileNotFoundError:
        return [elsewhere]
    said = [entry.text() if (entry := read_entry(line)) is not None else line for line in text.split("\n")[:-1]]
    lines = [printable(line) for text in said for line in text.split("\n")]
    return lines[-MOST_LINES:] or [f"the log of {node} is empty"]


Facts = Mapping[str, Any]
#: Of `/proc/PID/status`: the signals that a process takes itself.
CAUGHT = "SigCgt:"


def tell(
    node: Facts,
    status: Facts,
    host: str,
    logs: Path,
    send: Callable[[int, int], None] = os.kill,
    caught: Callable[[int], int] | None = None,
) -> list[str]:
    """Ask a process that is stuck for its stacks by a signal, if that is possible; return in words what was done.

    Parameters
    ----------
    node
        Of an examination.
    status
        The cluster's.
    host
        This one.
    logs
        Where logs of nodes that were started here are.
    send, caught
        Sends a signal; returns which a process takes itself, a bit each.
    """
    title, pid = f"{node['role']} {node['rank']}", int(node["pid"])
    if node["state"] == "gone":
        return [f"{title} has left meanwhile"]
    told = [f"{title} ({node['name']}, {node['host']}, pid {pid}) has not answered for 2 s"]
    told.append(f"its last sign of life was {node['seen_s']:.1f} s ago")
    if node["host"] != host:
        return [*told, f"it is on another host: on {node['host']}, try py-spy dump --pid {pid}, or zmqps stack there"]
    counters = _counters(node, status)
    number = counters.get("stacks_signal", 0)
    number = number if type(number) is int and 0 < number < signal.NSIG else 0
    try:
        ours = number and (caught or _caught)(pid) >> (number - 1) & 1
    except (OSError, ValueError):
        ours = 0
    if not ours:
        return [*told, f"it takes no signal to say what it is doing; try py-spy dump --pid {pid}"]
    try:
        send(pid, number)
    except OSError as error:
        return [*told, f"it could not be sent {signal.Signals(number).name}: {error}"]
    log = logs / f"{Path(str(counters.get('log') or node['name'])).name}.log"  # a peer's word: of a file there only
    where = str(log) if log.exists() else "its standard error"
    return [
        *told,
        f"sent it {signal.Signals(number).name}: what its threads are doing is in {where} now, unless it is stopped",
    ]


def _counters(node: Facts, status: Facts) -> Facts:
    """Return what a node has told of itself."""
    for member in status.get("members", ()):
        if all(member.get(key) == node[key] for key in ("role", "rank", "job", "pid", "host")):
            counters: Facts = member.get("counters", {})
            return counters
    return {}


def _caught(pid: int) -> int:
    text = read_kernel(f"/proc/{pid}/status")
    return next(int(line.removeprefix(CAUGHT), 16) for line in text.splitlines() if line.startswith(CAUGHT))
