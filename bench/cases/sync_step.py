"""sync_step: one synchronous step of all workers, beside plain sockets and an all-reduce of the same tensors."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

import zmqps
from bench.children import Child, call_all
from bench.limits import PlainSockets
from bench.options import in_place_option, new_option, phases_option, report, transfer_options
from bench.peers import forms
from bench.phases import phases_of, print_phases
from bench.results import Row, timed
from bench.setup import WARM_UP, Setup
from bench.stats import Times, network_bound, percentile, ratio_spread
from bench.transfer import TIMEOUT, TransferWorker, check_values, record
from zmqps.core.job.keyspace import SLICE_NBYTES

#: The smallest slices there are, in KB: what takes its time in them is not the bytes.
SMALL_SLICE_KB = 4
#: Steps of the barrier's own cluster for each step of the model.
BARRIER_BATCH = 10
#: The interpreter that `make bench-peers` makes; without it, this one, if it has torch.
PEERS_PYTHON = Path(".venv-peers/bin/python")


class SyncWorker(TransferWorker):
    """A worker process of a synchronous job."""

    def __init__(self, address: str, setup: Setup) -> None:
        super().__init__(address, setup, "push_pull", mode="sync")

    def waits(self, name: str, count: int) -> list[float]:
        """Do so many steps; return for each the seconds from acknowledged push to values, less a pull's own."""
        self._worker.barrier(name, timeout=TIMEOUT)
        seconds = []
        for _ in range(count):
            self._worker.push(self._gradients)
            pushed = time.perf_counter()
            self._worker.pull(out=self._out)
            pulled = time.perf_counter()
            self._worker.pull(out=self._out)  # nothing to wait for: what the transfer alone takes
            seconds.append((pulled - pushed) - (time.perf_counter() - pulled))
        return seconds


def _start(stack: ExitStack, setup: Setup, slice_nbytes: int) -> list[Child]:
    cluster = stack.enter_context(
        zmqps.LocalCluster(
            setup.servers, setup.workers, limits=zmqps.Limits(slice_size=slice_nbytes, heartbeat_timeout=60.0)
        )
    )
    workers = [stack.enter_context(Child(SyncWorker, cluster.address, setup)) for _ in range(setup.workers)]
    for worker in workers:
        worker.result()
    return workers


def _peers_python() -> Path | None:
    """Return an interpreter that has torch, if one is at hand."""
    return PEERS_PYTHON if PEERS_PYTHON.exists() else Path(sys.executable) if find_spec("torch") else None


def _of_gloo(setup: Setup) -> Setup:
    """Return what gloo is given: of the optimizers it has two."""
    return setup if setup.optimizer in ("sgd", "adam") else replace(setup, optimizer="sgd")


def measure(setup: Setup, python: Path | None = None) -> Row:
    """Let synchronous steps, plain sockets and an all-reduce take turns; return what each took.

    Parameters
    ----------
    setup
        The workload.
    python
        An interpreter that has torch, for the all-reduce; by default what can be found.

    Raises
    ------
    RuntimeError
        The values on the servers are wrong.
    """
    nbytes = setup.nbytes
    num_slices = max(1, -(-nbytes // SLICE_NBYTES))
    ours: list[float] = []
    limits: list[float] = []
    links: list[float] = []
    reduced: list[float] = []
    barriers: list[float] = []
    with ExitStack() as stack:
        workers = _start(stack, setup, SLICE_NBYTES)
        short = replace(setup, model=f"{num_slices * SMALL_SLICE_KB}KB", in_place=False, new=False)
        small = _start(stack, short, SMALL_SLICE_KB << 10)
        limit = stack.enter_context(PlainSockets(setup.transport, setup.servers, setup.workers, nbytes, nbytes))
        link = stack.enter_context(PlainSockets(setup.transport, 1, 1, nbytes, nbytes))
        python = python or _peers_python()
        gloo = stack.enter_context(forms.start("gloo", _of_gloo(setup), python.absolute())) if python else None
        for turn in range(WARM_UP + setup.steps):
            measured = call_all(workers, "steps", f"step {turn}", 1)
            plain, one = limit.steps(1), link.steps(1)
            allreduce = gloo.steps(1) if gloo is not None else []
            # of each step the worker that came last: it has not waited
            waits = [min(step) for step in zip(*call_all(small, "waits", f"{turn}", BARRIER_BATCH), strict=True)]
            if turn >= WARM_UP:
                ours += [seconds for times in measured for seconds in times]
                limits += plain
                links += one
                reduced += allreduce
                barriers += waits
        checked = check_values(replace(setup, workers=1), workers[0])
    return Row(
        case=f"sync_step{setup.arrays}",
        **setup.labels,
        **timed(Times(tuple(ours)), Times(tuple(limits)), 2 * nbytes),
        bound_s=network_bound(nbytes, setup.workers, setup.servers, nbytes / Times(tuple(links)).median),
        extra={
            "barrier_s": Times(tuple(barriers)).median,
            "barrier_p25_s": percentile(barriers, 25),
            "barrier_p75_s": percentile(barriers, 75),
            "barrier_p90_s": percentile(barriers, 90),
            **_versus(ours, reduced),
            "gloo_form": forms.fastest("gloo", _of_gloo(setup), python.absolute()) if python else None,
            "model_nbytes": nbytes,
            "checked": checked,
        },
    )


def _versus(ours: Sequence[float], reduced: Sequence[float]) -> dict[str, float | None]:
    if not reduced:
        return dict.fromkeys(("gloo_s", "ratio_to_gloo", "ratio_to_gloo_low", "ratio_to_gloo_high"))
    low, high = ratio_spread(ours, reduced)
    gloo_s = Times(tuple(reduced)).median
    ratio = Times(tuple(ours)).median / gloo_s
    return {"gloo_s": gloo_s, "ratio_to_gloo": ratio, "ratio_to_gloo_low": low, "ratio_to_gloo_high": high}


@click.command("sync_step")
@transfer_options
@in_place_option
@new_option
@phases_option
def command(json_path: Path | None, phases: bool, **fields: Any) -> None:
    """One synchronous step: every worker pushes, the mean is applied once, every worker pulls.

    Steps take turns with plain sockets that move the same bytes, and, where torch is to be had (.venv-peers, or this
    interpreter), with gloo: an all-reduce of as many bytes over as many ranks as there are workers, and the optimizer
    in each, as one tensor or in buckets, whichever is faster.

    barrier_s is what the barrier adds to transfers and apply: from the moment that the last worker's
    push is acknowledged to its next values, less the time of a pull for which nothing has to be waited.
    That is Arrive and Proceed, and commit on all servers. It is measured in the same turns on a second
    cluster, whose model has as many slices, each of 4 KiB: so it holds the work that is done for each
    slice, but next to none for each byte.
    """
    setup = Setup(**fields)
    row = measure(setup)
    if phases:
        row = replace(
            row, extra={**row.extra, "phases": phases_of(record("push_pull", setup, mode="sync"), "push_pull")}
        )
    report(row, json_path)
    if phases:
        print_phases(row)
