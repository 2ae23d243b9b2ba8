"""deadline: what the coordinator takes to find when something is due, as it does after every batch of messages."""

from __future__ import annotations

import time
from collections import deque
from itertools import count
from pathlib import Path
from typing import Any

import click

from bench.cases.members import COUNTERS, identity
from bench.options import json_option, keep
from bench.results import Row
from bench.stats import Times
from bench.tables import print_rows
from zmqps.core.coordinator.jobs import MAX_JOBS
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.events import Action, Peer, Received, Send
from zmqps.core.protocol.messages import Assign, Heartbeat, Init, Job, Message, Ready
from zmqps.optim import sgd

JOBS = (1, 16, 64, 250)
SERVER = b"@s"
MODES = ("sync", "async")


class Jobs:
    """A coordinator's machine with one server and as many jobs as are asked for, each of one worker that trains.

    Parameters
    ----------
    jobs
        How many.
    mode
        How they train, one of `MODES`.
    """

    def __init__(self, jobs: int, mode: str) -> None:
        self.machine = CoordinatorMachine(identity("coordinator", "c"), CoordinatorOptions())
        self._requests = count(1)
        self._inbox: deque[tuple[Peer, Message]] = deque()
        spec = JobSpec(parameters=(Parameter("w", (8,), "float32"),), optimizer=sgd(0.1).to_wire(), mode=mode)
        self.machine.start(0.0)
        self._inbox.append((SERVER, identity("server", "s").hello()))
        for number in range(jobs):
            name = f"worker-{number}"
            self._inbox.append((b"@" + name.encode(), identity("worker", name, f"job-{number}").hello()))
            self._inbox.append((b"@" + name.encode(), Init(next(self._requests), spec.to_wire())))
        while self._inbox:
            peer, message = self._inbox.popleft()
            self._answer(self.machine.handle(Received(peer, message), 0.0))

    @property
    def num_training(self) -> int:
        """How many jobs have all that they need."""
        return sum(run.state == "training" for run in self.machine.runs.values())

    def touched_deadline(self) -> float | None:
        """Return when something is due after a message has touched a job."""
        self.machine.touched.add("job-0")
        self.machine.touched.settle()
        return self.machine.next_deadline()

    def _answer(self, actions: list[Action]) -> None:
        """Do what the server does."""
        for action in actions:
            match action:
                case Send(peer=peer, message=Assign(epoch=epoch)) if peer == SERVER:
                    self._inbox.append((SERVER, Ready(epoch, 0)))
                case Send(peer=peer, message=Job(epoch=epoch, load=1)):
                    self._inbox.append((SERVER, Ready(epoch, 1)))


def seconds_of(do: Any, calls: int) -> tuple[float, ...]:
    """Return the processor time of each call."""
    taken = []
    for _ in range(calls):
        began = time.thread_time()
        do()
        taken.append(time.thread_time() - began)
    return tuple(taken)


def measure(jobs: int, mode: str, calls: int) -> Row:
    """Time `next_deadline`, beside the heartbeat of a member that it is asked after."""
    made = Jobs(jobs, mode)
    beat = Received(SERVER, Heartbeat(COUNTERS))
    seconds_of(made.machine.next_deadline, calls // 10)  # to warm up
    asked = Times(seconds_of(made.machine.next_deadline, calls))
    handled = Times(seconds_of(lambda: made.machine.handle(beat, 0.0), calls))
    touched = Times(seconds_of(made.touched_deadline, calls))
    return Row(
        case="deadline", model=mode, workers=jobs, servers=1, median_s=asked.median, p90_s=asked.p90,
        min_s=asked.minimum, steps=calls,
        extra={"jobs": made.num_training, "touched_s": touched.median, "heartbeat_s": handled.median},
    )  # fmt: skip


@click.command("deadline")
@click.option(
    "--jobs", "numbers", type=click.IntRange(1, MAX_JOBS), multiple=True, default=JOBS, show_default=True,
    help="How many are trained; may be repeated.",
)  # fmt: skip
@click.option("--mode", type=click.Choice(MODES), default="sync", show_default=True)
@click.option("--calls", type=click.IntRange(10), default=500, show_default=True, help="How many are timed.")
@json_option
def command(numbers: tuple[int, ...], mode: str, calls: int, json_path: Path | None) -> None:
    """Processor time of the coordinator's `next_deadline`, by the number of jobs on its cluster.

    It runs after every batch of messages. ``touched_s`` is what it takes where one of them has touched a job;
    ``heartbeat_s`` is what a message takes that is alone in one.
    """
    rows = [measure(number, mode, calls) for number in numbers]
    print_rows(rows)
    keep(rows, json_path)


if __name__ == "__main__":
    command()
