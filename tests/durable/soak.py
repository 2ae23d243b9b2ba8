"""Training for many minutes while nodes are killed again and again; final values are exact."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.durable.nodes import Nodes, is_whole, servers_in
from tests.durable.training import SLICE_NBYTES, Training

#: Something is killed so often.
KILL_S = 5.0
HEARTBEAT = {"heartbeat_interval": 0.25, "heartbeat_timeout": 1.5}


@dataclass(slots=True)
class Soak:
    """What became of it."""

    mode: str
    minutes: float = 0.0
    pushes: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0  # of any step
    whole_s: list[float] = field(default_factory=list)  # from each fault until every copy was there again
    memory: list[dict[str, int]] = field(default_factory=list)  # MB of each node, once a minute
    broken: list[str] = field(default_factory=list)


def kill_server(nodes: Nodes, rng: random.Random) -> None:
    """Kill a server, and start it again."""
    name = rng.choice(sorted(nodes.servers))
    nodes.kill(name)
    nodes.restart(name)


def kill_coordinator(nodes: Nodes, rng: random.Random) -> None:
    """Kill the coordinator, and start it again after a while."""
    nodes.kill("coordinator")
    time.sleep(rng.uniform(0.0, 2.0))  # it is away: asynchronous training goes on
    nodes.restart("coordinator")


def kill_both(nodes: Nodes, rng: random.Random) -> None:
    """Kill a server and the coordinator."""
    kill_server(nodes, rng)
    time.sleep(rng.uniform(0.0, 2.0))  # up to the hand-over, and beyond
    kill_coordinator(nodes, rng)


FAULTS: dict[str, Callable[[Nodes, random.Random], None]] = {
    "server": kill_server,
    "coordinator": kill_coordinator,
    "both": kill_both,
}


def soak(
    mode: str, minutes: float, directory: Path, *, servers: int = 3, workers: int = 4, replicas: int = 1,
    faults: Sequence[str] = ("server",), seed: int = 0, say: Callable[[str], None] = print,
) -> Soak:  # fmt: skip
    """Train, and let a fault happen every `KILL_S`, or when all copies are there again; say a line a minute."""
    out, rng = Soak(mode), random.Random(seed)
    began = minute = time.monotonic()
    journal = directory / "journal"
    with (
        Nodes(directory, servers, journal=journal, replicas=replicas, slice_nbytes=SLICE_NBYTES, **HEARTBEAT) as nodes,
        Training(nodes.address, mode, workers) as training,
    ):
        try:
            training.wait_for(20)
            due = time.monotonic()
            while time.monotonic() < began + 60 * minutes:
                due = max(due + KILL_S, time.monotonic())
                name = rng.choice(list(faults))
                at = time.monotonic()
                FAULTS[name](nodes, rng)
                out.faults[name] += 1
                wait_until_whole(nodes)
                out.whole_s.append(time.monotonic() - at)
                training.wait_for(3)
                if time.monotonic() >= minute + 60:
                    minute = time.monotonic()
                    out.memory.append(memory(nodes))
                    so_far = f"{(minute - began) / 60:5.1f} min {mode}: {sum(training.acknowledged)} pushes"
                    longest = max(training.longest)
                    say(f"{so_far}, {dict(out.faults)}, longest step {longest:.1f} s, MB {out.memory[-1]}")
                time.sleep(max(0.0, due - time.monotonic()))
        except BaseException as error:
            out.broken.append(repr(error))
            if not isinstance(error, Exception):
                raise
        out.broken += training.finish()
        out.pushes, out.longest_s = sum(training.acknowledged), max(training.longest)
        out.minutes = (time.monotonic() - began) / 60
    return out


def wait_until_whole(nodes: Nodes) -> None:
    """Wait until those servers are there that run, and no others, with every copy of every shard."""
    pids = {process.popen.pid for process in nodes.servers.values()}
    nodes.wait_until(lambda status: {member["pid"] for member in servers_in(status)} == pids and is_whole(status))


def memory(nodes: Nodes) -> dict[str, int]:
    """Return the resident megabytes of each node."""
    return {name: psutil.Process(p.popen.pid).memory_info().rss >> 20 for name, p in nodes.processes.items()}


def table(out: Soak) -> str:
    """Return the final words."""
    whole = sorted(out.whole_s) or [0.0]
    faults = ", ".join(f"{count} x {name}" for name, count in out.faults.items())
    lines = [
        f"{out.minutes:.1f} minutes {out.mode}: {out.pushes} pushes acknowledged; {faults}; all copies back after "
        f"{whole[len(whole) // 2]:.1f} s (median), {whole[-1]:.1f} s (longest); longest step {out.longest_s:.1f} s"
    ]
    if out.memory:
        lines.append(f"  MB after a minute {out.memory[0]}, at the end {out.memory[-1]}")
    return "\n".join([*lines, *([f"  BROKEN: {text}" for text in out.broken] or ["  every value is exact"])])
