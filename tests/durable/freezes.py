"""Processes that stand still for a while, as a paused machine or a hung write leaves them."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tests.durable.nodes import Nodes, is_whole, servers_in

#: A process stands still for so many heartbeat timeouts, at least and at most.
LEAST, MOST = 0.1, 3.0
#: So many timeouts is well within one: nobody may be given up for less.
WITHIN = 0.7
#: How often two stand still at once.
PAIRS = 0.3


def choose(names: Sequence[str], timeout: float, rng: random.Random) -> tuple[tuple[str, ...], float]:
    """Return who stands still next, and for how many seconds.

    Two servers that nobody hears for longer than the timeout are two servers lost, which one copy does not survive; nor
    does a synchronous step the loss of a server and, at once, of a worker that would have to bring its gradient again.
    """
    chosen = tuple(rng.sample(list(names), 2 if rng.random() < PAIRS else 1))
    two_lost = len(chosen) > 1 and "coordinator" not in chosen and any(name.startswith("server") for name in chosen)
    most = WITHIN if two_lost else MOST
    return chosen, timeout * rng.uniform(LEAST, most)


def may_be_lost(names: Sequence[str], seconds: float, timeout: float) -> set[str]:
    """Return who may be given up: those that stood still for long while the coordinator did not."""
    return set() if "coordinator" in names or seconds <= WITHIN * timeout else set(names)


def stand_still(pids: Mapping[str, int], seconds: float, rng: random.Random) -> None:
    """Stop processes, by name, for so long; they go on in random order."""
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)
    threading.Event().wait(seconds)  # the time itself is what is tested
    for name in rng.sample(sorted(pids), len(pids)):
        os.kill(pids[name], signal.SIGCONT)


def bring_back(nodes: Nodes) -> None:
    """Wait until every copy of every shard is there again; start servers again that were given up, and so end."""
    names = set(nodes.running)

    def ended() -> list[str]:
        return [name for name in names if nodes.servers[name].popen.poll() is not None]

    def good(status: Mapping[str, Any]) -> bool:
        there = {member["pid"] for member in servers_in(status)}
        return bool(ended()) or (there == {nodes.servers[name].popen.pid for name in names} and is_whole(status))

    while True:
        nodes.wait_until(good)
        if not (again := ended()):
            return
        for name in again:
            nodes.restart(name)
