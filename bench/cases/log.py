"""log: what a call of `zmqps.Worker.log` takes of the script, beside what any call takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np

import zmqps
from bench.stats import percentile
from bench.tables import console, new_table

#: Calls that are timed together.
BATCH = 200
#: Longer than the background thread needs to take what was noted.
PAUSE_S = 0.02


def measure(rounds: int) -> dict[str, list[float]]:
    """Return the seconds of a call, by what was logged; batches of each take turns."""
    scalar, array = np.float32(0.5), np.array(0.5, np.float32)
    with zmqps.LocalCluster(servers=1) as cluster, zmqps.connect(cluster.address) as worker:
        calls: dict[str, Callable[[int], Any]] = {
            "nothing (a call)": lambda step: None,
            "two floats": lambda step: worker.log({"loss": 0.5, "accuracy": 0.25}, step=step),
            "two numpy scalars": lambda step: worker.log({"loss": scalar, "accuracy": scalar}, step=step),
            "two numpy arrays": lambda step: worker.log({"loss": array, "accuracy": array}, step=step),
        }
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(rounds):
            for name, call in calls.items():
                began_at = time.perf_counter()
                for step in range(BATCH):
                    call(step)
                taken = time.perf_counter() - began_at
                if number:  # the first is to warm up
                    seconds[name].append(taken / BATCH)
            time.sleep(PAUSE_S)
    return seconds


@click.command(name="log")
@click.option("--rounds", type=click.IntRange(2), default=100, show_default=True, help="How often each is timed.")
def command(rounds: int) -> None:
    """Time `worker.log` as a script calls it, while the worker's background thread sends what was logged.

    The coordinator takes it, and no sink writes it.
    """
    table = new_table("logged", "median us", "p10 us", "p90 us")
    for name, seconds in measure(rounds).items():
        table.add_row(name, *(f"{1e6 * percentile(seconds, q):.2f}" for q in (50, 10, 90)))
    console.print(table)
