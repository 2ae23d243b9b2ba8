"""following: lookups at a follower beside those at a server, and how soon a pushed row is there."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
import numpy as np

import zmqps
import zmqps.follow
from bench.children import TIMEOUT, Child
from bench.ids import RowWork, shortened
from bench.options import json_option, report
from bench.results import Row
from bench.rows import NAME, RowWorker, ids_of
from bench.setup import WARM_UP
from bench.stats import percentile

#: Between two looks for a pushed row.
LOOK_S = 0.005
#: Pushes in a second: each has a share of the rows that change in that time.
PUSHES = 10


@contextmanager
def follower(address: str, every: float) -> Iterator[str]:
    """Follow the table in a process of its own; yield where it is asked."""
    command = [sys.executable, "-m", "zmqps", "follow", NAME, "--coordinator", address, "--every", str(every)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().rpartition(" ")[2].strip()
        finally:
            process.terminate()


class Changing(threading.Thread):
    """Pushes some rows again and again, as many in a second as are to change."""

    def __init__(self, address: str, work: RowWork, changed: int) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.num_changed = 0
        self._worker = zmqps.connect(address, timeout=TIMEOUT)
        self._work, self._changed = work, changed

    def run(self) -> None:
        """Push until it is over."""
        with self._worker:
            table, rng = self._worker.table(NAME), np.random.default_rng(0)
            number = self._changed // PUSHES
            grads = np.full((number, self._work.dim), 1e-3, np.float32)
            due = time.perf_counter()
            while not self.over.wait(max(0.0, due - time.perf_counter())):
                due += 1 / PUSHES
                table.push(ids_of(rng.choice(self._work.rows, number, replace=False)), grads, timeout=TIMEOUT)
                self.num_changed += number


def turns(lookups: zmqps.follow.Lookups, table: zmqps.Table, work: RowWork, steps: int) -> tuple[list[float], ...]:
    """Pull batches from the follower and from the server, in turns; return the seconds of both.

    Raises
    ------
    RuntimeError
        The rows differ.
    """
    batches = [ids_of(numbers) for numbers in work.batches(0)]
    out = np.empty((work.batch, work.dim), np.float32)
    times: tuple[list[float], list[float]] = [], []
    for turn in range(WARM_UP + steps):
        ids = batches[turn % len(batches)]
        for pull, found in ((lookups.pull, times[0]), (table.pull, times[1])):
            started = time.perf_counter()
            pull(ids, out=out, timeout=TIMEOUT)
            if turn >= WARM_UP:
                found.append(time.perf_counter() - started)
    if not np.array_equal(lookups.pull(ids, timeout=TIMEOUT), table.rows(ids, timeout=TIMEOUT)):
        raise RuntimeError("the follower's rows are not those of the server")
    return times


def fresh(lookups: zmqps.follow.Lookups, table: zmqps.Table, probes: int, dim: int) -> list[float]:
    """Push a row that nobody else does, and wait until the follower has it; return the seconds of each."""
    found = []
    for probe in range(probes):
        ids = np.array([-1 - probe])
        table.push(ids, np.full((1, dim), 1.0, np.float32), timeout=TIMEOUT)
        started, expected = time.perf_counter(), table.rows(ids, timeout=TIMEOUT)
        while not np.array_equal(lookups.pull(ids, timeout=TIMEOUT), expected):
            time.sleep(LOOK_S)
        found.append(time.perf_counter() - started)
    return found


def measure(work: RowWork, steps: int, changed: int, probes: int, every: float) -> Row:
    """Return what lookups took, beside pulls from the server, and how late rows were."""
    with ExitStack() as stack:
        cluster = stack.enter_context(zmqps.LocalCluster(1))
        loader = stack.enter_context(Child(RowWorker, cluster.address, work, "tcp", 0))
        loader.result()
        loader.call("load", timeout=TIMEOUT)
        address = stack.enter_context(follower(cluster.address, every))
        lookups = stack.enter_context(zmqps.follow.connect(address, timeout=TIMEOUT))
        worker = stack.enter_context(zmqps.connect(cluster.address, transport="tcp", timeout=TIMEOUT))
        table = worker.table(NAME, timeout=TIMEOUT)
        ours, servers = turns(lookups, table, work, steps)
        changing = Changing(cluster.address, work, changed)
        changing.start()
        started = time.perf_counter()
        late = fresh(lookups, table, probes, work.dim)
        seconds = time.perf_counter() - started
        changing.over.set()
        changing.join()
    return Row(
        case="following",
        model=f"{shortened(work.rows)}×{work.dim} by {work.batch}",
        servers=1,
        transport="tcp",
        median_s=percentile(ours, 50),
        p90_s=percentile(ours, 90),
        min_s=min(ours),
        steps=steps,
        extra={
            "rows_per_s": work.batch / percentile(ours, 50),
            "server_rows_per_s": work.batch / percentile(servers, 50),
            "rate_to_server": percentile([server / own for own, server in zip(ours, servers, strict=True)], 50),
            "fresh_p50_s": percentile(late, 50),
            "fresh_p99_s": percentile(late, 99),
            "changed_per_s": changing.num_changed / seconds,
            "probes": probes,
        },
    )


@click.command("following")
@click.option("--rows", type=click.IntRange(1), default=1_000_000, show_default=True, help="Rows of the table.")
@click.option("--dim", type=click.IntRange(1, 4096), default=64, show_default=True, help="Elements of a row.")
@click.option("--batch", type=click.IntRange(1), default=10_000, show_default=True, help="Ids of a lookup.")
@click.option("--steps", type=click.IntRange(1), default=60, show_default=True, help="Lookups that count.")
@click.option("--changed", type=click.IntRange(1), default=50_000, show_default=True, help="Rows pushed in a second.")
@click.option("--probes", type=click.IntRange(1), default=100, show_default=True, help="Rows waited for.")
@click.option("--every", type=float, default=0.5, show_default=True, help="As for `zmqps follow`.")
@json_option
def command(
    rows: int, dim: int, batch: int, steps: int, changed: int, probes: int, every: float, json_path: Path | None
) -> None:
    """Lookups at a follower, beside pulls of the same ids from a server over TCP, in turns.

    ``rate_to_server`` is how many rows a second come from the follower for each one from the server. Then some rows
    change all the time: ``fresh_p99_s`` is how long after its push a row is at the follower.
    """
    work = RowWork(rows=rows, dim=dim, batch=batch, ids="uniform", optimizer="sgd")
    report(measure(work, steps, changed, probes, every), json_path)
