"""day: what a coordinator holds after hours and days of heartbeats, logged values, steps, members that come and go."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import click

from bench.cases.members import identity
from bench.options import json_option, keep
from bench.processes import resident_nbytes
from bench.results import Row
from bench.tables import print_rows
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.events import Action, Received, Send
from zmqps.core.protocol.figures import BOUNDS
from zmqps.core.protocol.messages import (
    Arrive,
    Assign,
    Commit,
    Committed,
    Discard,
    Discarded,
    Error,
    Heartbeat,
    Init,
    Job,
    Leave,
    Message,
    Note,
    Ready,
    Status,
    Watch,
)
from zmqps.core.protocol.wire import encode
from zmqps.optim import sgd

SERVERS, WORKERS = 4, 16
#: Every so many seconds a step is done, and a worker goes and comes back as another one.
STEP_S, CHANGE_S = 2, 300
HOUR_S = 3600
#: Looked at after so many hours.
MARKS = (1, 6, 12, 24, 48, 168)
JOB = JobSpec(parameters=(Parameter("w", (8,), "float32"),), optimizer=sgd(0.1).to_wire(), mode="sync")


class Day:
    """A coordinator's machine on a clock that is turned: each second all members beat, and workers log two values."""

    def __init__(self) -> None:
        self.machine = CoordinatorMachine(identity("coordinator", "c"), CoordinatorOptions(servers=SERVERS))
        self.now = 0.0
        self.num_messages = 0
        self.failed = ""
        self.view: Status | None = None  # that was asked for last
        self._numbers = count(1)
        self._lives = [0] * WORKERS
        self._noted = [0] * WORKERS
        self._go(self.machine.start(0.0))
        for server in self._servers:
            self._take(server, identity("server", server).hello())
        for worker in self._workers:
            self._join(worker)

    @property
    def _servers(self) -> Iterator[str]:
        return (f"s{index}" for index in range(SERVERS))

    @property
    def _workers(self) -> list[str]:
        return [f"w{index}.{life}" for index, life in enumerate(self._lives)]

    def run(self, seconds: int) -> None:
        """Let so many seconds go by."""
        for _ in range(seconds):
            self.now += 1.0
            self._second(int(self.now))
            while (due := self.machine.next_deadline()) is not None and due <= self.now:
                self._go(self.machine.on_deadline(self.now))

    def look(self) -> Status:
        """Return the view of a client that looks back a day."""
        self._take("somebody", Watch(next(self._numbers), 24.0 * HOUR_S, 1000))
        assert self.view is not None
        return self.view

    def _second(self, second: int) -> None:
        counters = _counters(second)
        for member in (*self._servers, *self._workers):
            self._take(member, Heartbeat(counters))
        for index, worker in enumerate(self._workers):
            values = {"loss": 1.0 / second, "accuracy": 1.0 - 1.0 / second}
            self._take(worker, Note(self._noted[index], ((0.5, second // STEP_S, values),)))
            self._noted[index] += 1
        if second % STEP_S == 0:
            step = self.machine.runs["default"].steps.clock
            for worker in self._workers:
                self._take(worker, Arrive(next(self._numbers), step, (1,)))
        if second % CHANGE_S == 0:
            index = second // CHANGE_S % WORKERS
            self._take(self._workers[index], Leave(next(self._numbers)))
            self._lives[index] += 1
            self._noted[index] = 0
            self._join(self._workers[index])

    def _join(self, worker: str) -> None:
        self._take(worker, identity("worker", worker, "default").hello())
        self._take(worker, Init(next(self._numbers), JOB.to_wire()))

    def _take(self, name: str, message: Message) -> None:
        self.num_messages += 1
        self._go(self.machine.handle(Received(b"@" + name.encode(), message), self.now))

    def _go(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._answer(action.peer[1:].decode(), action.message)

    def _answer(self, name: str, message: Message) -> None:
        """Do what the other nodes do."""
        match message:
            case Assign(epoch=epoch):
                self._take(name, Ready(epoch, 0))
            case Job(epoch=epoch, load=1):
                for server in self._servers:
                    self._take(server, Ready(epoch, 1))
            case Commit(epoch=epoch, step=step):
                self._take(name, Committed(epoch, step))
            case Discard(epoch=epoch):
                self._take(name, Discarded(epoch))
            case Status():
                self.view = message
            case Error():
                self.failed = self.failed or message.text


def _counters(second: int) -> dict[str, Any]:
    """Return what a member has counted, more each second."""
    steps, seconds = second // STEP_S, float(second)
    histograms = {name: [seconds, steps, *[0] * (len(BOUNDS[name]))] for name in ("step_seconds", "staleness")}
    return {
        "awake_seconds": seconds,
        "rss_nbytes": 1 << 30, "cpu_seconds": seconds, "bytes_sent": steps << 20, "bytes_received": steps << 20,
        "pushed_nbytes": steps << 20, "pulled_nbytes": steps << 20, "pushes": steps, "pulls": steps, **histograms,
    }  # fmt: skip


def measure(hours: float, marks: Sequence[float] = MARKS) -> list[Row]:
    """Let hours go by; look at the memory at their beginning (after ten minutes) and at some marks."""
    day = Day()
    begin = min(600, int(hours * HOUR_S))
    day.run(begin)
    gc.collect()
    before = resident_nbytes(os.getpid())
    rows, started = [], time.thread_time()
    for mark in (*(mark for mark in marks if mark < hours), hours):
        day.run(int(mark * HOUR_S - day.now))
        took = time.thread_time() - started
        gc.collect()
        held = resident_nbytes(os.getpid())
        looked = time.thread_time()
        view = encode(day.look())
        looked = time.thread_time() - looked
        history = day.machine.watching.history
        extra = {
            "hours": mark, "messages": day.num_messages, "gained_mb": (held - before) / 1e6,
            "history_mb": history.nbytes / 1e6, "series": len(history.series),
            "events": len(day.machine.watching.events), "view_mb": sum(len(memoryview(part)) for part in view) / 1e6,
            "view_s": looked, "processor_share": took / (mark * HOUR_S - begin or 1),
        }  # fmt: skip
        rows.append(Row(case="day", servers=SERVERS, workers=WORKERS, extra=extra))
    assert not day.failed, day.failed
    return rows


@click.command("day")
@click.option("--hours", type=click.FloatRange(min=0.01), default=24.0, show_default=True, help="How long it lasts.")
@json_option
def command(hours: float, json_path: Path | None) -> None:
    """A day of a cluster of 4 servers and 16 workers, on a clock that is turned: what its coordinator holds.

    Every second all beat, and each worker logs two values; every two seconds there is a step, every five minutes a
    worker goes and another one comes. ``gained_mb`` is the memory of the process beyond that after ten minutes;
    ``view_mb`` and ``view_s`` are the view of the last day, and how long the coordinator takes for it;
    ``processor_share`` is what all this takes of a core.
    """
    rows = measure(hours)
    print_rows(rows)
    keep(rows, json_path)
