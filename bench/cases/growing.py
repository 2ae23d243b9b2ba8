"""growing: a table that gets new rows with every push: how long a push may take, and the memory of a row."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.children import Child
from bench.ids import RowWork, shortened
from bench.options import json_option, report, row_optimizer_option
from bench.processes import resident_nbytes
from bench.results import Row
from bench.rows import ids_of, make_table
from bench.setup import GRADIENT_SCALE
from bench.stats import percentile

TIMEOUT = 3600.0
#: Pushes before those that count: the loops are loaded.
WARM_UP = 8


class Growing:
    """A table in a process of its own, so that its memory is all that grows there."""

    def __init__(self, work: RowWork) -> None:
        self._work = work
        self._table = make_table(work.rows + (WARM_UP + 2) * work.batch, work.dim, work.optimizer)
        self._grads = np.full((work.batch, work.dim), GRADIENT_SCALE, np.float32)

    def grow(self) -> dict[str, Any]:
        """Push new rows until there are as many as there shall be; return what that took."""
        work, table = self._work, self._table
        seconds, busy = [], []
        before, at = 0, 0
        for push in range(WARM_UP + -(-work.rows // work.batch)):
            if push == WARM_UP:
                before, rows_before = resident_nbytes(os.getpid()), len(table)
            ids = ids_of(np.arange(at, at + work.batch))
            at += work.batch
            busy_before, started = time.thread_time(), time.perf_counter()
            table.update(ids, self._grads)
            seconds.append(time.perf_counter() - started)
            busy.append(time.thread_time() - busy_before)
        rows = len(table) - rows_before
        seconds, busy = seconds[WARM_UP:], busy[WARM_UP:]
        longest = int(np.argmax(seconds))
        return {
            "rows": rows,
            "resident_nbytes": resident_nbytes(os.getpid()) - before,
            "table_nbytes": table.store.nbytes,
            "seconds": percentile(seconds, 50),
            "p90_s": percentile(seconds, 90),
            "least_s": min(seconds),
            "p999_s": percentile(seconds, 99.9),
            "longest_s": seconds[longest],
            "longest_at_rows": (longest + 1) * work.batch,
            "longest_busy_s": max(busy),
        }


def measure(work: RowWork) -> Row:
    """Let a table grow to its number of rows."""
    with Child(Growing, work) as child:
        child.result()
        found = child.call("grow", timeout=TIMEOUT)
    raw = 4 * work.dim * found["rows"]
    pushes = -(-work.rows // work.batch)
    return Row(
        case="growing",
        model=f"{shortened(work.rows)}×{work.dim} by {work.batch}",
        optimizer=work.optimizer,
        median_s=found["seconds"],
        p90_s=found["p90_s"],
        min_s=found["least_s"],
        steps=pushes,
        extra={
            "p999_s": found["p999_s"],
            "longest_s": found["longest_s"],
            "longest_busy_s": found["longest_busy_s"],  # of processor time: a wait for a core does not count
            "longest_at_rows": found["longest_at_rows"],
            "rows_per_s": work.batch / found["seconds"],
            "table_nbytes": found["table_nbytes"],
            "table_to_raw": found["table_nbytes"] / raw,
            "resident_nbytes": found["resident_nbytes"],
            "resident_to_raw": found["resident_nbytes"] / raw,
        },
    )


@click.command("growing")
@click.option("--rows", type=click.IntRange(1), default=50_000_000, show_default=True, help="That there are at last.")
@click.option("--dim", type=click.IntRange(1, 4096), default=16, show_default=True, help="Elements of a row.")
@click.option("--batch", type=click.IntRange(1), default=4096, show_default=True, help="New rows of a push.")
@row_optimizer_option
@json_option
def command(json_path: Path | None, **fields: Any) -> None:
    """A table that gets new rows with every push, in one process: the longest push, and how much memory rows take.

    ``longest_s`` is what a server may be stopped by growth, ``longest_busy_s`` without waits for a core, which a busy
    machine has. ``resident_to_raw`` is what the process gained for each byte of values, ``table_to_raw`` what the table
    says it takes, which is what limits go by.
    """
    report(measure(RowWork(**fields)), json_path)
