"""members: how long thousands of members that come, beat, fall silent and are lost delay the steps of a small job."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import click

from bench.options import json_option, report
from bench.results import Row
from bench.stats import Times
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.node.member import Identity
from zmqps.core.protocol.events import Action, Peer, Received, Send
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
    Message,
    Proceed,
    Ready,
    Status,
    StatusRequest,
)
from zmqps.core.protocol.wire import decode, encode
from zmqps.optim import sgd

#: The coordinator's usual intervals.
INTERVAL_S, TIMEOUT_S = 1.0, 10.0
#: When the crowd begins to come, how long that takes, and how long it beats before it falls silent.
COMES_AT_S, COMING_S, BEATING_S = 1.0, 4.0, 5.0
#: Seconds that a worker of the small job computes before it arrives at its next step.
COMPUTE_S = 0.02
#: Messages that the coordinator takes before it looks at its timer, as `zmqps.net.zeromq.BATCH`.
BATCH = 256
#: Of all members; its comparison takes as long whatever it is.
SECRET = b"a secret of all."
COUNTERS: dict[str, Any] = {
    "pushes": 100, "pulls": 100, "bytes_sent": 1 << 30, "bytes_received": 1 << 30, "nonfinite": 0, "retries": 0,
    "staleness_mean": 1.25, "staleness_max": 4, "undeliverable": 0, "device": "cpu",
}  # fmt: skip


class Crowd:
    """A coordinator's machine whose clock its own work (processor time) moves on: messages that come meanwhile wait.

    A synchronous job of one server and two workers trains from the beginning to the end. Others come to another
    job, beat, fall silent at the same moment and are lost. All messages are encoded and decoded.

    Parameters
    ----------
    members
        How many others come.
    role
        Theirs: worker or observer.
    ask_s
        Seconds between requests for the status; 0: none.
    """

    def __init__(self, members: int, role: str = "worker", ask_s: float = 1.0) -> None:
        self._rng = Random(1)
        options = CoordinatorOptions(heartbeat_interval=INTERVAL_S, heartbeat_timeout=TIMEOUT_S)
        self._machine = CoordinatorMachine(identity("coordinator", "c"), options)
        self._numbers = count(1)
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._inbox: deque[tuple[Peer, list[Any]]] = deque()
        self._job = JobSpec(parameters=(Parameter("w", (8,), "float32"),), optimizer=sgd(0.1).to_wire(), mode="sync")
        self._step = 0
        self._arrived: list[float] = []
        self.now = 0.0
        self.silent_at = COMES_AT_S + COMING_S + BEATING_S
        self.ends_at = self.silent_at + TIMEOUT_S + 5.0
        self.delays: list[float] = []  # from the last arrival of a step to its answer
        self.busy_s = {"coming": 0.0, "beating": 0.0, "being lost": 0.0}
        self.longest_s = 0.0  # that one call of the machine took
        self.status_s = 0.0  # of the slowest answer to a status request
        self.failed = ""  # what the small job has met
        self._asked: dict[int, float] = {}
        self._machine.start(0.0)
        for role_, name in (("server", "s"), ("worker", "a"), ("worker", "b")):
            self._join(role_, name, "small", 0.0, self.ends_at)
        for name in "ab":
            self._at(0.2, lambda name=name: self._send(name, Init(1, self._job.to_wire())))  # type: ignore[misc]
        for number in range(members):
            at = COMES_AT_S + COMING_S * self._rng.random()
            self._join(role, f"crowd-{number}", "crowd", at, self.silent_at)
        at = 0.5
        while ask_s and at < self.ends_at:
            self._at(at, lambda at=at: self._ask(at))  # type: ignore[misc]
            at += ask_s

    def _at(self, time_: float, do: Callable[[], object]) -> None:
        heapq.heappush(self._heap, (time_, next(self._numbers), do))

    def _join(self, role: str, name: str, job: str, at: float, until: float) -> None:
        hello = identity(role, name, job).hello()
        self._at(at, lambda: self._send(name, hello))
        self._at(at + INTERVAL_S, lambda: self._beat(name, at + INTERVAL_S, until))

    def _beat(self, name: str, at: float, until: float) -> None:
        if at < until:
            self._send(name, Heartbeat(COUNTERS))
            self._at(at + INTERVAL_S, lambda: self._beat(name, at + INTERVAL_S, until))

    def _ask(self, at: float) -> None:
        number = next(self._numbers)
        self._asked[number] = at
        self._send("asker", StatusRequest(number))

    def _send(self, name: str, message: Message) -> None:
        self._inbox.append((b"@" + name.encode(), encode(message)))

    # --- the coordinator ---------------------------------------------------------------------------

    def run(self) -> None:
        """Let all happen."""
        while self._heap or self._inbox:
            while self._heap and self._heap[0][0] <= self.now:
                heapq.heappop(self._heap)[2]()
            due = self._machine.next_deadline()
            if not self._inbox and (due is None or due > self.now):
                at = self._heap[0][0] if self._heap else self.now
                self.now = at if due is None else min(due, at)
                continue
            for _ in range(min(BATCH, len(self._inbox))):
                peer, frames = self._inbox.popleft()
                self._call(lambda peer=peer, frames=frames: self._take(peer, frames))  # type: ignore[misc]
            due = self._machine.next_deadline()
            if due is not None and due <= self.now:
                self._call(lambda: self._machine.on_deadline(self.now))

    def _take(self, peer: Peer, frames: list[Any]) -> list[Action]:
        return self._machine.handle(Received(peer, decode(frames)), self.now)

    def _call(self, ask: Callable[[], list[Action]]) -> None:
        started = time.thread_time()
        sends = [action for action in ask() if isinstance(action, Send)]
        for send in sends:
            encode(send.message)
        self._machine.next_deadline()  # which the timer is set to
        took = time.thread_time() - started
        phase = (
            "coming" if self.now < COMES_AT_S + COMING_S else "beating" if self.now < self.silent_at else "being lost"
        )
        self.now += took
        self.busy_s[phase] += took
        self.longest_s = max(self.longest_s, took)
        for send in sends:
            self._answered(send.peer[1:].decode(), send.message)

    def _answered(self, name: str, message: Message) -> None:
        """Do what the other nodes do."""
        match message:
            case Assign(epoch=epoch):
                self._send("s", Ready(epoch, 0))
            case Job(epoch=epoch, load=1):
                self._send("s", Ready(epoch, 1))
            case Job():
                self._compute(name)
            case Commit(epoch=epoch, step=step):
                self._send("s", Committed(epoch, step))
            case Discard(epoch=epoch):
                self._send("s", Discarded(epoch))
            case Proceed(version=version):
                self._step = version
                if len(self._arrived) == 2:
                    self.delays.append(self.now - self._arrived[-1])
                    self._arrived.clear()
                self._compute(name)
            case Status(request=request):
                self.status_s = max(self.status_s, self.now - self._asked.pop(request))
            case Error() if name in "ab":
                self.failed = message.text

    def _compute(self, name: str) -> None:
        at = self.now + COMPUTE_S
        if at < self.ends_at:
            self._at(at, lambda: self._arrive(name, at))

    def _arrive(self, name: str, at: float) -> None:
        self._arrived.append(at)
        self._send(name, Arrive(next(self._numbers), self._step, (1,)))


def identity(role: str, name: str, job: str = "") -> Identity:
    """Return a member's identity; servers and the coordinator are of no job."""
    job = "" if role in ("server", "coordinator") else job
    return Identity(
        role=role, incarnation=name.encode().ljust(16, b"."), name=name, host="host", pid=1, endpoint="", job=job,
        secret=SECRET,
    )  # fmt: skip


def measure(members: int, role: str) -> Row:
    """Let so many come and go."""
    crowd = Crowd(members, role)
    crowd.run()
    times = Times(tuple(crowd.delays))
    return Row(
        case="members", model=role, workers=members, median_s=times.median, p90_s=times.p90, min_s=times.minimum,
        steps=len(times.seconds),
        extra={
            "failed": crowd.failed, "longest_delay_s": max(times.seconds), "longest_call_s": crowd.longest_s,
            "status_s": crowd.status_s,
            **{f"{name.replace(' ', '_')}_s": seconds for name, seconds in crowd.busy_s.items()},
        },
    )  # fmt: skip


@click.command("members")
@click.option("--members", type=click.IntRange(1, 4096), default=4000, show_default=True, help="How many come and go.")
@click.option("--role", type=click.Choice(["worker", "observer"]), default="worker", show_default=True)
@json_option
def command(members: int, role: str, json_path: Path | None) -> None:
    """Steps of a small job while members of another job join, beat, fall silent and are lost.

    The coordinator's machine in one thread, on a clock that its own work moves on. ``longest_delay_s`` is the
    longest time that a step waited for the coordinator after its last worker had arrived.
    """
    report(measure(members, role), json_path)


if __name__ == "__main__":
    command()
