"""lookups: what a row costs to find, read and update in tables of more and more rows, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.children import Child
from bench.ids import shortened
from bench.options import json_option, keep, output_option, row_optimizer_option
from bench.results import Row, timed
from bench.rows import fill_table, ids_of, make_table
from bench.setup import GRADIENT_SCALE, WARM_UP
from bench.stats import Times
from bench.tables import console, new_table

#: By default up to this many rows.
SMALLEST, LARGEST = 100_000, 100_000_000
#: Filling a table of 10**8 rows takes a minute on a quiet core.
TIMEOUT = 1800.0
WORK = ("find", "read", "update", "take")


class Lookups:
    """A table that grows, of which rows are looked for that lie anywhere."""

    def __init__(self, largest: int, dim: int, batch: int, optimizer: str) -> None:
        self._table = make_table(2 * largest + batch, dim, optimizer)
        self._batch, self._filled = batch, 0
        self._grads = np.full((batch, dim), GRADIENT_SCALE, np.float32)
        self._out = np.empty((batch, dim), np.float32)

    def measure(self, rows: int, steps: int) -> dict[str, list[float]]:
        """Return the seconds that a batch took each time: by what was done."""
        fill_table(self._table, rows, self._filled)
        self._filled = rows
        rng, store = np.random.default_rng(rows), self._table.store
        seconds: dict[str, list[float]] = {name: [] for name in WORK}
        for step in range(WARM_UP + steps):
            for name in WORK:  # each time other rows: those of the one before are in the caches
                ids = np.unique(ids_of(rng.integers(0, rows, self._batch)))
                rng.shuffle(ids)
                grads, out = self._grads[: ids.size], self._out[: ids.size]
                places = store.find(ids) if name == "take" else ids
                _forget()
                taken = _seconds(self._work(name, ids, places, grads, out)) * self._batch / ids.size
                if step >= WARM_UP:
                    seconds[name].append(taken)
        return seconds

    def _work(self, name: str, ids: Any, places: Any, grads: Any, out: Any) -> Callable[[], Any]:
        store = self._table.store
        return {
            "find": lambda: store.find(ids),
            "read": lambda: store.gather(ids, out),
            "update": lambda: self._table.update(ids, grads),
            "take": lambda: np.take(store.values, places, axis=0, out=out, mode="clip"),
        }[name]


def _seconds(work: Callable[[], Any]) -> float:
    """Return how long some work keeps this thread's core busy: others may want it, too."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


_other = np.zeros(8 << 20, np.float64)


def _forget() -> None:
    """Fill the caches with something else."""
    _other[:] += 1.0


def measure(sizes: list[int], dim: int, batch: int, optimizer: str, steps: int) -> list[Row]:
    """Return a row for each size of a table."""
    rows = []
    with Child(Lookups, sizes[-1], dim, batch, optimizer) as child:
        child.result()
        for size in sizes:
            found = {name: Times(tuple(s)) for name, s in child.call("measure", size, steps, timeout=TIMEOUT).items()}
            rows.append(
                Row(
                    case="lookups",
                    model=f"{shortened(size)}×{dim}",
                    optimizer=optimizer,
                    **timed(found["read"], found["take"], 4 * dim * batch),
                    extra={
                        "table_rows": size,
                        **{f"{name}_ns": 1e9 * times.median / batch for name, times in found.items()},
                        **{f"{name}_best_ns": 1e9 * times.minimum / batch for name, times in found.items()},
                    },
                )
            )
    return rows


def print_lookups(rows: list[Row]) -> None:
    """Print what a row costs."""
    table = new_table("rows", "find", "read", "update", "numpy.take", "read: ratio", "quartiles")
    for row in rows:
        numbers = [f"{row.extra[f'{name}_ns']:.0f} ns" for name in WORK]
        table.add_row(
            str(row.model), *numbers, f"{row.ratio_to_limit:.2f}", f"{row.ratio_low:.2f}–{row.ratio_high:.2f}"
        )
    console.print(table)


@click.command("lookups")
@click.option(
    "--rows", "largest", type=click.IntRange(SMALLEST), default=LARGEST, show_default=True, help="Of the largest table."
)
@click.option("--dim", type=click.IntRange(1, 4096), default=8, show_default=True, help="Elements of a row.")
@click.option("--batch", type=click.IntRange(1), default=65_536, show_default=True, help="Ids looked for at a time.")
@row_optimizer_option
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True, help="Batches, after three to warm up.")
@output_option
@json_option
def command(
    largest: int, dim: int, batch: int, optimizer: str, steps: int, output: Path | None, json_path: Path | None
) -> None:
    """What a row costs to find, to read and to update: in tables of 10⁵ rows, 10⁶ and so on, without messages.

    Processor time; ids are uniform, and the caches hold something else each time. Beside it numpy.take of as many rows
    whose places are known: what is left is the index. 10⁸ rows of 8 elements take 6 GB.
    """
    sizes = [SMALLEST]
    while sizes[-1] * 10 <= largest:
        sizes.append(sizes[-1] * 10)
    rows = measure(sizes, dim, batch, optimizer, steps)
    print_lookups(rows)
    keep(rows, json_path, output)
