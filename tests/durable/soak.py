"""Training for many minutes while nodes are killed, drained and added again and again; final values are exact."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.durable.freezes import bring_back, choose, stand_still
from tests.durable.nodes import PATIENCE, Nodes, is_whole, servers_in
from tests.durable.training import SLICE_NBYTES, Training
from tests.pace import stretch
from zmqps.nodes.inquiry import drain_server, scale_servers

#: Something happens so often.
FAULT_S = 5.0
#: What is held is compared where so many things have happened.
FEWEST_TO_COMPARE = 12
#: Jobs are scaled to so many servers at most.
MOST_SERVERS = 5
HEARTBEAT = {"heartbeat_interval": 0.25, "heartbeat_timeout": stretch(1.5)}


class Fault(NamedTuple):
    """What has happened, and what it has cost."""

    name: str
    whole_s: float  # until every copy of every shard was there again, on the servers that run
    longest_s: float  # of any step meanwhile


class Held(NamedTuple):
    """What a process holds: memory of its own, and descriptors."""

    pid: int
    mb: int
    descriptors: int

    def __str__(self) -> str:
        return f"{self.mb} MB {self.descriptors} fds"


@dataclass(slots=True)
class Soak:
    """What became of it."""

    mode: str
    minutes: float = 0.0
    pushes: int = 0
    faults: list[Fault] = field(default_factory=list)
    held: list[dict[str, Held]] = field(default_factory=list)  # by name, after each: of nodes, and this process
    broken: list[str] = field(default_factory=list)


# --- what happens: each returns when it is over, and says what it has done -------------------------


def kill_server(nodes: Nodes, rng: random.Random) -> str:
    """Kill a server, and start it again."""
    name = rng.choice(sorted(nodes.running))
    nodes.kill(name)
    nodes.restart(name)
    return f"{name} killed"


def kill_coordinator(nodes: Nodes, rng: random.Random) -> str:
    """Kill the coordinator, and start it again after a while."""
    nodes.kill("coordinator")
    away_s = rng.uniform(0.0, 2.0)
    time.sleep(away_s)  # asynchronous training goes on
    nodes.restart("coordinator")
    return f"coordinator killed, away for {away_s:.1f} s"


def kill_both(nodes: Nodes, rng: random.Random) -> str:
    """Kill a server and the coordinator."""
    text = kill_server(nodes, rng)
    time.sleep(rng.uniform(0.0, 2.0))  # up to the hand-over, and beyond
    return f"{text}, {kill_coordinator(nodes, rng)}"


def drain(nodes: Nodes, rng: random.Random) -> str:
    """Drain a server, and start one in its place, before that or afterwards."""
    name = rng.choice(sorted(nodes.running))
    before = rng.random() < 0.5 or len(nodes.running) == nodes.replicas + 1  # else nobody could take what it has
    if before:
        nodes.add_server()
    drain_server(nodes.address, name, timeout=PATIENCE)
    nodes.wait_for_end(name)
    if not before:
        nodes.add_server()
    return f"{name} drained, another one started {'before' if before else 'afterwards'}"


def scale(nodes: Nodes, rng: random.Random) -> str:
    """Let jobs lie on some number of servers, started as needed."""
    before, wanted = len(nodes.running), rng.randint(nodes.replicas + 1, MOST_SERVERS)
    for _ in range(before, wanted):
        nodes.add_server()
    scale_servers(nodes.address, wanted, timeout=PATIENCE)
    status = nodes.wait_until(lambda status: len(servers_in(status)) == wanted)
    staying = {member["pid"] for member in servers_in(status)}
    for name, process in nodes.running.items():
        if process.popen.pid not in staying:
            nodes.wait_for_end(name)
    for job in status["jobs"].values():
        assert len(job["job"]["placement"]) == wanted, job["job"]["placement"]
    return f"from {before} to {wanted} servers"


def freeze(nodes: Nodes, rng: random.Random) -> str:
    """Stop a node or two, the coordinator among them, for up to three heartbeat timeouts."""
    names, seconds = choose(["coordinator", *sorted(nodes.running)], HEARTBEAT["heartbeat_timeout"], rng)
    stand_still({name: nodes.processes[name].popen.pid for name in names}, seconds, rng)
    bring_back(nodes)
    return f"{' and '.join(names)} stood still for {seconds:.1f} s"


FAULTS: dict[str, Callable[[Nodes, random.Random], str]] = {
    "server": kill_server,
    "coordinator": kill_coordinator,
    "both": kill_both,
    "drain": drain,
    "scale": scale,
    "freeze": freeze,
}


# --- the soak ----------------------------------------------------------------------------------------


def soak(
    mode: str, minutes: float, directory: Path, *, servers: int = 3, workers: int = 4, replicas: int = 1,
    faults: Sequence[str] = ("server",), least: int = 0, seed: int = 0, say: Callable[[str], None] = print,
) -> Soak:  # fmt: skip
    """Train, and let the faults happen in turn, one every `FAULT_S` or when all copies are there again; say each.

    It goes on until the minutes are over and so many faults (`least`) have happened.
    """
    out, rng = Soak(mode), random.Random(seed)
    began = time.monotonic()
    children = set(psutil.Process().children(recursive=True))
    journal = directory / "journal"
    turn: list[str] = []
    with (
        Nodes(directory, servers, journal=journal, replicas=replicas, slice_size=SLICE_NBYTES, **HEARTBEAT) as nodes,
        Training(nodes.address, mode, workers) as training,
    ):
        try:
            training.wait_for(20)
            due = time.monotonic()
            while time.monotonic() < began + 60 * minutes or len(out.faults) < least:
                due = max(due + FAULT_S, time.monotonic())
                turn = turn or rng.sample(list(faults), len(faults))
                out.faults.append(_happen(turn.pop(), nodes, training, rng, began, say))
                out.held.append(_held(nodes))
                time.sleep(max(0.0, due - time.monotonic()))
        except BaseException as error:
            out.broken.append(repr(error))
            if not isinstance(error, Exception):
                raise
        out.broken += training.finish()
        out.pushes = sum(training.acknowledged)
        out.minutes = (time.monotonic() - began) / 60
    left = set(psutil.Process().children(recursive=True)) - children
    out.broken += [f"{process} is left" for process in left]
    out.broken += _grown(out.held)
    return out


def _happen(
    name: str, nodes: Nodes, training: Training, rng: random.Random, began: float, say: Callable[[str], None]
) -> Fault:
    training.take_longest()
    at = time.monotonic()
    text = FAULTS[name](nodes, rng)
    wait_until_whole(nodes)
    whole_s = time.monotonic() - at
    training.wait_for(3)
    fault = Fault(name, whole_s, training.take_longest())
    say(
        f"{at - began:6.1f} s: {text}; whole after {whole_s:.1f} s, longest step {fault.longest_s:.2f} s; workers hold "
        f"{_held(nodes)['workers']}"
    )
    return fault


def wait_until_whole(nodes: Nodes) -> None:
    """Wait until those servers are there that run, and no others, with every copy of every shard."""
    pids = {process.popen.pid for process in nodes.running.values()}
    nodes.wait_until(lambda status: {member["pid"] for member in servers_in(status)} == pids and is_whole(status))


def _held(nodes: Nodes) -> dict[str, Held]:
    pids = {"workers": os.getpid(), "coordinator": nodes.processes["coordinator"].popen.pid}
    pids |= {name: process.popen.pid for name, process in nodes.running.items()}
    processes = {name: psutil.Process(pid) for name, pid in pids.items()}
    memory = {
        name: process.memory_info() for name, process in processes.items()
    }  # lanes fill, and are as large as ever
    return {
        name: Held(process.pid, (memory[name].rss - memory[name].shared) >> 20, process.num_fds())
        for name, process in processes.items()
    }


def _grown(held: Sequence[dict[str, Held]]) -> list[str]:
    """Say who holds more in the second half than in the first, of those who live all the time."""
    if len(held) < FEWEST_TO_COMPARE:
        return []
    half, found = len(held) // 2, []
    for name in held[-1]:
        of = [one[name] for one in held if name in one and one[name].pid == held[-1][name].pid]
        if len(of) == len(held):
            before = Held(0, max(h.mb for h in of[:half]), max(h.descriptors for h in of[:half]))
            after = Held(0, max(h.mb for h in of[half:]), max(h.descriptors for h in of[half:]))
            if after.mb > 1.25 * before.mb + 16 or after.descriptors > 1.25 * before.descriptors + 16:
                found.append(f"{name} grows: up to {before} in the first half, up to {after} in the second one")
    return found


def table(out: Soak) -> str:
    """Return the final words."""
    lines = [f"{out.minutes:.1f} minutes {out.mode}: {out.pushes} pushes acknowledged"]
    for name in FAULTS:
        these = [fault for fault in out.faults if fault.name == name]
        if these:
            whole = sorted(fault.whole_s for fault in these)
            lines.append(
                f"  {len(these):3} x {name:11} whole again after {whole[len(whole) // 2]:.1f} s (median), "
                f"{whole[-1]:.1f} s (longest); longest step {max(fault.longest_s for fault in these):.2f} s"
            )
    if out.held:
        for title, held in (("first", out.held[0]), ("last", out.held[-1])):
            lines.append(f"  {title:5} {', '.join(f'{name} {one}' for name, one in held.items())}")
    return "\n".join([*lines, *([f"  BROKEN: {text}" for text in out.broken] or ["  every value is exact"])])
