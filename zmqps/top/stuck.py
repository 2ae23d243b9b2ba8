"""A node whose loop does not answer: what can still be tried on its host, and what was."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zmqps.files import read_kernel

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
