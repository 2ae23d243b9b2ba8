"""watching: steps of a cluster while everything that shows it is on, beside its steps while all of that is off."""

from __future__ import annotations

import re
import tempfile
import time
import urllib.request
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

import zmqps
from bench import models
from bench.cases.core import FOREVER, Wires
from bench.children import TIMEOUT, Child, call_all
from bench.options import report, transfer_options
from bench.results import Row, timed
from bench.setup import GRADIENT_SCALE, Setup
from bench.stats import Times, percentile
from bench.transfer import TransferWorker, check_values
from zmqps.client.tensors import describe
from zmqps.core.job.spec import JobSpec
from zmqps.core.worker.operations import Attached, Exchange, StartJob
from zmqps.core.worker.transfer import PullTransfer, PushTransfer, Source, Target, plan
from zmqps.gpu.handover import Handover
from zmqps.nodes.inquiry import ask_view

#: What can be on: `start` says how.
SWITCHES = ("metrics", "log", "view", "page")
#: Seconds between two scrapes, and two looks at the view.
EVERY_S = 1.0
#: Steps by which the length of a block is found.
TRIAL = 10
#: Push_pulls whose messages are counted; calls that are timed together, and how many times.
BATCH, CALLS, ROUNDS = 50, 2000, 60


class LoggingWorker(TransferWorker):
    """A worker process of a synchronous job, which may log."""

    def __init__(self, address: str, setup: Setup) -> None:
        super().__init__(address, setup, "push_pull", mode="sync")

    def block(self, name: str, count: int, log: bool) -> float:
        """Do so many steps, beginning together with the other workers; return the seconds of one."""
        self._worker.barrier(name, timeout=TIMEOUT)
        began_at = time.perf_counter()
        for step in range(count):
            self._work()
            if log:
                self._worker.log({"loss": 0.5, "accuracy": 0.25}, step=step)
        taken = time.perf_counter() - began_at
        self._pushes += count
        return taken / count


class Watcher:
    """A watcher of a cluster in its own process, as Prometheus and a terminal or page are.

    Parameters
    ----------
    address
        The coordinator's, to request the view; empty: not requested.
    metrics
        Where it answers scrapes; empty: not scraped.
    page
        Where its page is; empty: not open.
    """

    def __init__(self, address: str, metrics: str, page: str) -> None:
        self._address, self._metrics, self._page = address, metrics, page
        self._opened = False

    def watch(self, seconds: float) -> list[tuple[float, int, float]]:
        """Look once a second for so long; return of each look the seconds and bytes of a scrape, and the view's."""
        found = []
        began_at = time.monotonic()
        for number in range(max(1, round(seconds / EVERY_S))):
            time.sleep(max(0.0, began_at + (number + 0.5) * EVERY_S - time.monotonic()))  # as often as is said
            scraped_at, nbytes = time.perf_counter(), 0
            if self._metrics:
                with urllib.request.urlopen(self._metrics, timeout=TIMEOUT) as answer:
                    nbytes = len(answer.read())
            asked_at = time.perf_counter()
            if self._address:
                ask_view(self._address, timeout=TIMEOUT)
            found.append((asked_at - scraped_at, nbytes, time.perf_counter() - asked_at))
            if self._page:  # as its script does: all of it once, then what is new
                asked = f"{self._page}{'now' if self._opened else 'view'}.json"
                self._opened = True
                request = urllib.request.Request(asked, headers={"Accept-Encoding": "gzip"})
                with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                    answer.read()
        return found


@dataclass(frozen=True, slots=True)
class Watched:
    """A cluster, its workers, and its watcher if that is on."""

    workers: list[Child]
    watcher: Child
    log: bool

    def block(self, name: str, count: int, seconds: float, *, on: bool) -> tuple[float, list[tuple[float, int, float]]]:
        """Let all do so many steps, and be watched for so many seconds if it is on; return the seconds of a step."""
        if on:
            self.watcher.begin("watch", seconds)
        taken = max(call_all(self.workers, "block", name, count, self.log and on))
        return taken, self.watcher.result() if on else []


def start(stack: ExitStack, setup: Setup, on: Collection[str]) -> Watched:
    """Start a cluster and its workers, and its watchers by `SWITCHES`, which define "everything"."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="zmqps-watching-")))
    cluster = stack.enter_context(
        zmqps.LocalCluster(
            setup.servers, setup.workers, directory=directory, limits=zmqps.Limits(heartbeat_timeout=60.0),
            watching=zmqps.Watching(page="127.0.0.1:0" if {"metrics", "page"} & {*on} else ""),
        )
    )  # fmt: skip
    said = (directory / "coordinator.log").read_text()
    metrics = _told(said, r"metrics at (\S+/metrics)") if "metrics" in on else ""
    page = _told(said, r"the page is at (http\S+/)") if "page" in on else ""
    workers = [stack.enter_context(Child(LoggingWorker, cluster.address, setup)) for _ in range(setup.workers)]
    for worker in workers:
        worker.result()
    watcher = stack.enter_context(Child(Watcher, cluster.address if "view" in on else "", metrics, page))
    watcher.result()
    return Watched(workers, watcher, "log" in on)


def _told(log: str, pattern: str) -> str:
    found = re.search(pattern, log)
    assert found is not None, f"the coordinator does not say {pattern!r}"
    return found[1]


def measure(setup: Setup, on: Sequence[str], block_s: float) -> Row:
    """Let a cluster be watched and left alone in turns; return what a step takes in each.

    Two clusters that are alike differ by more than watching costs, so it is one.

    Parameters
    ----------
    setup
        What is trained; ``steps`` is the number of turns.
    on
        Of `SWITCHES`.
    block_s
        Seconds of a turn, about.
    """
    taken: dict[bool, list[float]] = {True: [], False: []}
    seen: list[tuple[float, int, float]] = []
    with ExitStack() as stack:
        cluster = start(stack, setup, on)
        trial = [cluster.block(f"trial {number}", TRIAL, 0.0, on=False)[0] for number in range(3)]
        count = max(1, round(block_s / min(trial)))
        for turn in range(1 + setup.steps):
            for is_on in (True, False) if turn % 2 else (False, True):
                seconds, looks = cluster.block(f"turn {turn} {is_on}", count, block_s, on=is_on)
                if turn:  # the first is to warm up
                    taken[is_on].append(seconds)
                    seen += looks
        checked = check_values(setup, cluster.workers[0])
    low, high = (percentile(taken[False], q) for q in (25, 75))
    ratios = [a / b for a, b in zip(taken[True], taken[False], strict=True)]
    return Row(
        case="watching" if set(on) == set(SWITCHES) else f"watching {'+'.join(on) or 'nothing'}",
        **setup.labels,
        **timed(Times(tuple(taken[True])), Times(tuple(taken[False])), 2 * setup.nbytes),
        extra={
            "ratio_of_neighbours": percentile(ratios, 50),
            "steps_of_a_turn": count,
            "off_p25_s": low,
            "off_p75_s": high,
            **_looks(seen),
            **recording(),
            "checked": checked,
        },
    )


def _looks(seen: Sequence[tuple[float, int, float]]) -> dict[str, float]:
    scrapes, nbytes, views = zip(*seen, strict=True)
    return {"scrape_s": percentile(scrapes, 50), "scrape_nbytes": max(nbytes), "view_s": percentile(views, 50)}


def recording() -> dict[str, float]:
    """Return the microseconds that recording takes of each message, by the core's machines: median and quartiles.

    Recorded is what figures over time need beside the numbers that there were before: the histogram of step times, and
    how long each update takes. Each is timed alone, again and again, for in a step it is less than what steps differ
    by; the messages are those of a push_pull of one slice, so the fewest that a step has.
    """
    values = models.arrays(models.find("1KB"), 1.0)
    parameters, flat = describe(values, Handover())
    job = JobSpec(parameters=parameters, optimizer=zmqps.optim.sgd().to_wire(), mode="async")
    wires = Wires()
    attached: Attached
    [attached] = wires.run(StartJob(FOREVER, job=job, values=flat))
    gradients, cargoes = [np.full_like(array, GRADIENT_SCALE) for array in flat], plan(attached.placement)
    before, steps = wires.messages, sum(wires.worker.tally.counters()["step_seconds"][1:])
    for _ in range(BATCH):
        push = PushTransfer(cargoes=cargoes, source=Source(arrays=gradients))
        wires.run(Exchange(FOREVER, push=push, pull=PullTransfer(cargoes=cargoes, target=Target(arrays=flat))))
    recorded = sum(wires.worker.tally.counters()["step_seconds"][1:]) - steps
    messages, tally = (wires.messages - before) / BATCH, wires.worker.tally
    taken = []
    for _ in range(ROUNDS):
        step = recorded / BATCH * (_timed(lambda: tally.stepped(0.001)) - _timed(_nothing))
        update = 2 * (_timed(time.perf_counter) - _timed(float))  # a shard without a clock calls `float`
        taken.append(1e6 * (step + update) / messages)
    return {
        "messages_of_a_step": messages,
        **{f"recording{name}_us": percentile(taken, q) for name, q in (("", 50), ("_p25", 25), ("_p75", 75))},
    }


def _timed(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    began_at = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began_at) / CALLS


def _nothing() -> None:
    """Record nothing."""


@click.command("watching")
@transfer_options
@click.option(
    "--on", multiple=True, type=click.Choice(SWITCHES), default=SWITCHES, show_default=True,
    help="What is on in every other turn; may be repeated.",
)  # fmt: skip
@click.option("--nothing", is_flag=True, help="Nothing is: how far turns differ that are alike.")
@click.option("--block", type=click.FloatRange(0.1), default=3.0, show_default=True, help="Seconds of a turn.")
def command(json_path: Path | None, on: tuple[str, ...], nothing: bool, block: float, **fields: Any) -> None:
    """Synchronous steps of a cluster while it is watched, in turns with those while it is not.

    On are: the coordinator's endpoint for Prometheus, scraped once a second; worker.log in each step; a client that
    requests the view once a second, as `zmqps top` does; and a browser with the page open. The limit is the turns
    without; the watchers run on the same host. ratio_of_neighbours is the median over pairs of turns, recording_us what
    counting takes of a message.
    """
    report(measure(Setup(**fields), () if nothing else on, block), json_path)
