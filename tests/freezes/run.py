"""Stops nodes and workers at random times, for random times, beside honest training; says who was given up."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.durable.nodes import Nodes, is_whole, servers_in
from tests.freezes.training import Training
from tests.freezes.worker import SLICE_NBYTES

#: A process stands still for so many heartbeat timeouts, at least and at most.
LEAST, MOST = 0.1, 3.0
#: So many timeouts is well within one: nobody may be given up for less.
WITHIN = 0.7
#: How often two stand still at once.
PAIRS = 0.3


class Freeze(NamedTuple):
    """Who stood still, for how many seconds, and what it has cost."""

    names: tuple[str, ...]
    seconds: float
    longest_s: float  # without an acknowledged push
    lost: tuple[str, ...]  # given up meanwhile


@dataclass(slots=True)
class Freezes:
    """What became of it."""

    mode: str
    minutes: float = 0.0
    pushes: int = 0
    evictions: int = 0
    done: list[Freeze] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def stand_still(pids: Mapping[str, int], seconds: float, rng: random.Random) -> None:
    """Stop processes for so long; they go on in random order."""
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)
    threading.Event().wait(seconds)  # what is tested is the time itself
    for name in rng.sample(sorted(pids), len(pids)):
        os.kill(pids[name], signal.SIGCONT)


def choose(names: Sequence[str], timeout: float, rng: random.Random) -> tuple[tuple[str, ...], float]:
    """Return who stands still next, and for how long.

    Two servers that nobody hears for longer than the timeout are two servers lost, which one copy does not survive.
    """
    chosen = tuple(rng.sample(list(names), 2 if rng.random() < PAIRS else 1))
    most = WITHIN if all(name.startswith("server") for name in chosen) and len(chosen) > 1 else MOST
    return chosen, timeout * rng.uniform(LEAST, most)


def may_be_lost(names: Sequence[str], seconds: float, timeout: float) -> set[str]:
    """Return who may be given up: those that stood still for long while the coordinator did not."""
    return set() if "coordinator" in names or seconds <= WITHIN * timeout else set(names)


def freezes(
    mode: str, number: int, directory: Path, *, servers: int = 3, workers: int = 3, timeout: float = 2.0,
    seed: int = 0, say: Callable[[str], None] = print,
) -> Freezes:  # fmt: skip
    """Train, and let so many freezes happen, one after the other; say each."""
    out, rng, began = Freezes(mode), random.Random(seed), time.monotonic()
    with (
        Nodes(
            directory, servers, journal=directory / "journal", replicas=1, slice_nbytes=SLICE_NBYTES,
            heartbeat_interval=timeout / 8, heartbeat_timeout=timeout,
        ) as nodes,
        Training(nodes.address, mode, workers) as training,
    ):  # fmt: skip
        try:
            training.wait_for(5)
            for _ in range(number):
                names, seconds = choose([*nodes.processes, *training.processes], timeout, rng)
                freeze = _happen(names, seconds, nodes, training, rng)
                out.done.append(freeze)
                unjust = set(freeze.lost) - may_be_lost(names, seconds, timeout)
                if unjust:
                    out.broken.append(f"{sorted(unjust)} given up, while {names} stood still for {seconds:.1f} s")
                say(
                    f"{time.monotonic() - began:6.1f} s: {' and '.join(names)} stood still for {seconds:.1f} s; "
                    f"longest without a push {freeze.longest_s:.1f} s; given up: {', '.join(freeze.lost) or 'nobody'}"
                )
        except BaseException as error:
            out.broken.append(repr(error))
            if not isinstance(error, Exception):
                raise
        out.broken += training.finish()
        out.pushes, out.evictions = sum(training.acknowledged), sum(training.evictions)
    out.minutes = (time.monotonic() - began) / 60
    return out


def _happen(
    names: tuple[str, ...], seconds: float, nodes: Nodes, training: Training, rng: random.Random
) -> Freeze:  # fmt: skip
    pids = {name: process.popen.pid for name, process in nodes.processes.items()}
    pids |= {name: process.pid for name, process in training.processes.items()}
    before = _lost(nodes)
    training.take_longest()
    stand_still({name: pids[name] for name in names}, seconds, rng)
    training.wait_for(2)
    wait_until_whole(nodes)
    training.wait_for(2)
    return Freeze(names, seconds, training.take_longest(), tuple(_lost(nodes)[len(before) :]))


def wait_until_whole(nodes: Nodes) -> None:
    """Wait until every copy of every shard is there again; start servers again that were given up, and so end."""
    while True:

        def good(status: Mapping[str, Any]) -> bool:
            pids = {process.popen.pid for process in nodes.servers.values() if process.popen.poll() is None}
            if len(pids) < len(nodes.servers):
                return True
            return {member["pid"] for member in servers_in(status)} == pids and is_whole(status)

        nodes.wait_until(good)
        ended = [name for name in nodes.servers if name not in nodes.running]
        if not ended:
            return
        for name in ended:
            nodes.restart(name)


def _lost(nodes: Nodes) -> list[str]:
    """Return the names of those that the coordinator has given up, each time."""
    return re.findall(r"lost \w+ \d+ \(([^,]+),", nodes.log("coordinator"))


def table(out: Freezes) -> str:
    """Return the final words."""
    lines = [
        f"{len(out.done)} freezes in {out.minutes:.1f} minutes {out.mode}: {out.pushes} pushes acknowledged, "
        f"{out.evictions} times a worker joined again"
    ]
    for what in ("coordinator", "server", "worker"):
        these = [freeze for freeze in out.done if any(name.startswith(what) for name in freeze.names)]
        if these:
            worst = max(these, key=lambda freeze: freeze.longest_s)
            lost = sum(name.startswith(what) for freeze in these for name in freeze.lost)
            lines.append(
                f"  {len(these):3} x {what:11} longest without a push {worst.longest_s:.1f} s "
                f"({' and '.join(worst.names)} stood still for {worst.seconds:.1f} s); given up {lost} times"
            )
    return "\n".join([*lines, *([f"  BROKEN: {text}" for text in out.broken] or ["  every value is exact"])])
