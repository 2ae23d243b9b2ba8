"""Stops nodes and workers at random times, for random times, beside honest training; says who was given up."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.durable.freezes import bring_back, choose, may_be_lost, stand_still
from tests.durable.nodes import Nodes
from tests.freezes.training import Training
from tests.freezes.worker import SLICE_NBYTES

#: Who was heard within so many timeouts has just been heard: it is to be heard every eighth of one.
HEARD = 0.15


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


def freezes(
    mode: str, number: int, directory: Path, *, servers: int = 3, workers: int = 3, timeout: float = 2.0,
    seed: int = 0, say: Callable[[str], None] = print,
) -> Freezes:  # fmt: skip
    """Train, and let so many freezes happen, one after the other; say each."""
    out, rng, began = Freezes(mode), random.Random(seed), time.monotonic()
    with (
        Nodes(
            directory, servers, journal=directory / "journal", replicas=1, slice_size=SLICE_NBYTES,
            heartbeat_interval=timeout / 8, heartbeat_timeout=timeout,
        ) as nodes,
        Training(nodes.address, mode, workers) as training,
    ):  # fmt: skip
        try:
            training.wait_for(5)
            for _ in range(number):
                _all_heard(nodes, timeout)
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
    bring_back(nodes)
    training.wait_for(2)
    return Freeze(names, seconds, training.take_longest(), tuple(_lost(nodes)[len(before) :]))


def _all_heard(nodes: Nodes, timeout: float) -> None:
    """Wait until nobody is silent: two freezes in a row of one that is not heard between them would be one of both."""
    nodes.wait_until(lambda status: all(member["silent_s"] <= HEARD * timeout for member in status["members"]))


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
