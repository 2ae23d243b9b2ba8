"""fairness: what a small step of one job takes while another job floods the same servers."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

import zmqps
from bench.children import TIMEOUT, Child
from bench.options import json_option, model_option, optimizer_option, report, transport_option
from bench.results import Row, timed
from bench.setup import Setup
from bench.stats import Times, percentile
from bench.transfer import TransferWorker

#: Turns of small steps without and with the flood, one after the other, so that a busy machine weighs on both.
TURNS = 10
#: Small steps in a turn.
BATCH = 100


class FloodingWorker(TransferWorker):
    """A worker that pushes and pulls a whole model without a pause, while it is told to."""

    def __init__(self, address: str, setup: Setup) -> None:
        super().__init__(address, setup, "push_pull", job="flood")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._count = 0

    def start(self) -> None:
        """Begin; a step is under way when this returns."""
        self._stop.clear()
        self._count, begun = 0, threading.Event()

        def flood() -> None:
            while not self._stop.is_set():
                begun.set()
                self._work()
                self._count += 1

        self._thread = threading.Thread(target=flood)
        self._thread.start()
        begun.wait(TIMEOUT)

    def stop(self) -> int:
        """End; return how many steps there were."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join(TIMEOUT)
        return self._count


def measure(setup: Setup, flood: str = "resnet50") -> Row:
    """Time a small model's push_pulls alone and beside a flood, in turns."""
    alone: list[float] = []
    beside: list[float] = []
    flooded = 0
    large = Setup(model=flood, servers=setup.servers, workers=1, transport=setup.transport, optimizer=setup.optimizer)
    with ExitStack() as stack:
        cluster = stack.enter_context(zmqps.LocalCluster(servers=setup.servers))
        worker = stack.enter_context(Child(TransferWorker, cluster.address, setup, "push_pull"))
        worker.result()
        other = stack.enter_context(Child(FloodingWorker, cluster.address, large))
        other.result()
        worker.call("steps", "warm up", BATCH)
        for turn in range(TURNS):
            alone += worker.call("steps", f"alone {turn}", BATCH)
            other.call("start")
            beside += worker.call("steps", f"beside {turn}", BATCH)
            flooded += other.call("stop")
    return Row(
        case="fairness",
        **setup.labels,
        **timed(Times(tuple(beside)), Times(tuple(alone)), 2 * setup.nbytes),
        extra={
            "alone_p50_s": percentile(alone, 50),
            "alone_p99_s": percentile(alone, 99),
            "beside_p50_s": percentile(beside, 50),
            "beside_p99_s": percentile(beside, 99),
            "flood_steps": flooded,
            "flood_nbytes": 2 * flooded * large.nbytes,
        },
    )


@click.command("fairness")
@model_option("1KB")
@click.option("--flood", default="resnet50", show_default=True, help="The model that the other job pushes and pulls.")
@click.option("--servers", type=click.IntRange(1), default=1, show_default=True, help="Server processes.")
@transport_option
@optimizer_option
@json_option
def command(flood: str, json_path: Path | None, **fields: Any) -> None:
    """A 1 KB push_pull of one job, alone and while another job pushes and pulls a large model without a pause.

    The limit is the step alone, so the ratio says how much the other job is felt.
    """
    report(measure(Setup(workers=1, **fields), flood), json_path)
